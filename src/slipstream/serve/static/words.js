// What the page says, in English and Chinese. {…} are filled in.

export const WORDS = {
  "server.loading": ["Loading what the server runs …", "正在读取服务器信息……"],
  "server.context": ["{n} tokens of context", "上下文 {n} 个词元"],
  "server.slots": ["{n} slots", "{n} 个槽位"],
  "server.slot": ["1 slot", "1 个槽位"],
  "server.gone": ["no server", "服务器没有响应"],
  "drafting.on": ["drafting: {names}", "推测解码：{names}"],
  "drafting.off": ["drafting is off: {reason}", "推测解码已关闭：{reason}"],
  "key.label": ["API key", "API 密钥"],
  "key.use": ["Use it", "使用"],
  "key.help": ["This server asks for one. It stays in this tab only.", "服务器需要密钥。它只保存在这个标签页里。"],
  "key.wrong": ["The server did not take this API key.", "服务器没有接受这个 API 密钥。"],
  "key.needed": ["The server asks for an API key.", "服务器需要 API 密钥。"],
  prompt: ["Prompt", "提示词"],
  examples: ["Try", "试试"],
  "example.repeat": ["a list, twice", "重复的列表"],
  "example.code": ["code", "代码"],
  "example.prose": ["prose", "散文"],
  "text.repeat": [
    "List the days of the week, one on each line, and then list them again in the same order.",
    "逐行列出一周的七天，然后按同样的顺序再列一遍。",
  ],
  "text.code": [
    "Write a Python class Stack with push, pop, peek and __len__, each with a docstring, and then a test for each method.",
    "用 Python 写一个 Stack 类，包含 push、pop、peek 和 __len__，每个方法都要有文档字符串，然后为每个方法写一个测试。",
  ],
  "text.prose": ["Tell a short story about a lighthouse keeper who is afraid of the dark.", "讲一个短故事：一个怕黑的灯塔看守人。"],
  both: ["Side by side", "并排比较"],
  "both.help": [
    "Plain first, then speculative: the same prompt and seed, one after the other.",
    "先普通解码，再推测解码：提示词和种子相同，一个接一个地运行。",
  ],
  send: ["Send", "发送"],
  stop: ["Stop", "停止"],
  settings: ["Settings", "设置"],
  system: ["System text", "系统文本"],
  temperature: ["Temperature", "温度"],
  top_p: ["Top-p", "Top-p"],
  max_tokens: ["Max. tokens", "最多词元数"],
  seed: ["Seed", "种子"],
  "seed.random": ["random", "随机"],
  drafters: ["Drafters", "草稿器"],
  "drafters.help": ["None ticked: plain decoding.", "一个都不选：普通解码。"],
  optional: ["optional", "可选"],
  prediction: ["Predicted answer", "预测的回答"],
  "prediction.help": [
    "A text that the answer will be much like; the drafter “predicted” guesses from it.",
    "与回答大致相同的文本；草稿器 predicted 据此猜测。",
  ],
  schema: ["JSON schema", "JSON 模式"],
  "schema.bad": ["This is not JSON: {why}", "这不是 JSON：{why}"],
  "schema.kind": ["A schema is an object, true or false.", "模式必须是对象、true 或 false。"],
  retry: ["Try again", "重试"],
  empty: [
    "Ask something: the answer appears here as it is written, each token marked with who proposed it. What a drafter guessed and the target confirmed came in the same forward as the token before it; that is the time won.",
    "提一个问题：回答会边写边显示在这里，每个词元都标出由谁提出。草稿器猜对并得到目标模型确认的词元，与它前面的词元出自同一次前向计算；省下的时间就在这里。",
  ],
  comparison: ["Comparison", "比较"],
  "ratio.wait": ["The comparison comes when both are done.", "两者都完成后显示比较结果。"],
  "ratio.words": [
    "the speed of plain decoding: {fast} instead of {slow} tokens per second.",
    "普通解码速度的倍数：每秒 {fast} 个词元，普通解码为 {slow} 个。",
  ],
  "ratio.none": ["Too few tokens to compare the speed.", "词元太少，无法比较速度。"],
  "ratio.again": [
    "This prompt was drafted for before; recycle and corpus may remember its answer, which a new text would not have.",
    "这个提示词之前已经推测过；recycle 和 corpus 可能记得它的回答，新的文本不会有这个便利。",
  ],
  "same.yes": ["The two texts are identical.", "两段文本完全相同。"],
  "same.no": [
    "The texts differ from character {at} on: plain “{plain}”, speculative “{speculative}”.",
    "文本从第 {at} 个字符起不同：普通解码“{plain}”，推测解码“{speculative}”。",
  ],
  "same.lossy": ["The verifier {verify} is lossy, so they may.", "验证器 {verify} 是有损的，所以可能不同。"],
  "same.sampled": [
    "The verifier {verify} keeps the distribution, not the text of a seed, so they may.",
    "验证器 {verify} 保持的是分布，而不是某个种子的文本，所以可能不同。",
  ],
  "same.exact": [
    "With exact verification that happens only at a near-tie of two tokens, where rounding decides.",
    "在 exact 验证下，只有两个词元几乎并列、由舍入决定时才会这样。",
  ],
  "same.end": ["(the end)", "（结束）"],
  prices: ["The price of a forward", "一次前向计算的代价"],
  "prices.help": [
    "Milliseconds for one forward of n new tokens, measured on this machine and refined as it runs. Where it is flat, guesses ride along for free.",
    "一次前向计算处理 n 个新词元所用的毫秒数：在这台机器上测得，并在运行中修正。平坦的地方，猜测几乎不花时间。",
  ],
  "prices.none": ["This server's policy measures no prices.", "这个服务器的策略不测量代价。"],
  "prices.unknown": ["Not loaded.", "尚未读取。"],
  "prices.times": ["{n} tokens cost {times} times as much as one.", "{n} 个词元的代价是一个的 {times} 倍。"],
  "prices.used": ["Coloured: sizes that this answer used, with the number of its steps.", "着色：这次回答用到的大小，以及步数。"],
  "prices.drafter": ["A guess of {name} costs {ms} ms.", "{name} 猜一个词元需要 {ms} 毫秒。"],
  "prices.bar": ["{n} tokens: {ms} ms", "{n} 个词元：{ms} 毫秒"],
  "prices.bar.used": ["{n} steps of this answer", "本次回答中有 {n} 步"],
  "prices.axis": ["tokens in a forward", "一次前向计算的词元数"],
  speed: ["Speed", "速度"],
  "speed.unit": ["tok/s", "词元/秒"],
  "speed.first": ["first token after {s}\u00a0s", "首个词元 {s}\u00a0秒"],
  acceptance: ["Acceptance rate", "接受率"],
  "acceptance.of": ["{accepted} of {verified} guesses", "{verified} 个猜测中的 {accepted} 个"],
  "acceptance.none": ["nothing guessed", "没有猜测"],
  length: ["Mean acceptance length", "平均接受长度"],
  "length.unit": ["tokens per forward", "每次前向计算的词元数"],
  steps: ["Steps", "步数"],
  "steps.drafted": ["{n} with guesses", "其中 {n} 步有猜测"],
  plain: ["Plain", "普通解码"],
  speculative: ["Speculative", "推测解码"],
  "state.waiting": ["waiting", "等待"],
  "state.reading": ["reading the prompt", "正在读提示词"],
  "state.writing": ["writing", "正在生成"],
  "state.done": ["done", "完成"],
  "state.length": ["token limit", "达到词元上限"],
  "state.stopped": ["stopped", "已停止"],
  "state.failed": ["failed", "失败"],
  "status.reading": ["{which}: reading the prompt …", "{which}：正在读提示词……"],
  "status.writing": ["{which}: writing …", "{which}：正在生成……"],
  "status.done": ["Done.", "完成。"],
  "status.stopped": ["Stopped; the server's slot is free again.", "已停止；服务器的槽位已释放。"],
  "status.failed": ["It failed: see the message.", "失败：请看提示信息。"],
  "origin.target": ["target", "目标模型"],
  "origin.title": ["proposed by {name}; this step: {accepted} of {verified} guesses right", "由 {name} 提出；这一步 {verified} 个猜测中对了 {accepted} 个"],
  "origin.title.target": ["the target's own", "目标模型自己的"],
  "drafter.active": ["active", "启用"],
  "drafter.paused": ["paused", "暂停"],
  "note.off": ["Nothing was drafted: {reason}", "没有推测：{reason}"],
  "note.saved": ["about {s} s saved", "约节省 {s} 秒"],
  "note.lost": ["about {s} s lost", "约多用 {s} 秒"],
  "note.usage": [
    "prompt {prompt} tokens ({cached} cached), answer {answer}; seed {seed}",
    "提示词 {prompt} 个词元（缓存 {cached} 个），回答 {answer} 个；种子 {seed}",
  ],
  "trouble.gone": ["The server does not answer.", "服务器没有响应。"],
  "trouble.gone.hint": ["See that it still runs; nothing you typed is lost.", "请确认它仍在运行；你输入的内容都还在。"],
  "trouble.broken": ["The connection broke before the answer was complete.", "回答完成之前连接中断了。"],
  "trouble.broken.hint": ["The server may have been stopped. What came is kept.", "服务器可能已被停止。收到的部分已保留。"],
  "trouble.later": ["Try again in {s} s.", "请在 {s} 秒后重试。"],
  "trouble.unknown": ["The page itself failed: {why}", "页面自身出错：{why}"],
};

const column = navigator.language.toLowerCase().startsWith("zh") ? 1 : 0;
export const language = ["en", "zh"][column];

/** The words of that name. */
export function say(name, values = {}) {
  return WORDS[name][column].replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

/** Put the words into all elements below `root` that name some. */
export function translate(root) {
  for (const element of root.querySelectorAll("[data-word]")) element.textContent = say(element.dataset.word);
  for (const element of root.querySelectorAll("[data-word-placeholder]")) {
    element.placeholder = say(element.dataset.wordPlaceholder);
  }
}

/** A number for people: so many digits behind the point, or a dash where there is none. */
export function number(value, digits = 1) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}
