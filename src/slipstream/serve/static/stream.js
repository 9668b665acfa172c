// Asking the server and reading its stream of events.

/** What went wrong, for people. `status` is 0 when there was no answer at all. */
export class Trouble extends Error {
  constructor(message, hint = "", status = 0) {
    super(message);
    Object.assign(this, { hint, status });
  }
}

/** Events of a byte stream: the data of each. Chunks may end anywhere, inside a character or between \r and \n. */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      held += done ? decoder.decode() + "\n\n" : decoder.decode(value, { stream: true });
      const lines = held.split(/\r\n|\n|\r(?!$)/); // an \r at the end may be half of \r\n
      held = lines.pop();
      for (const line of lines) {
        if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        } else if (/^data(:|$)/.test(line)) {
          data.push(line.slice(5).replace(/^ /, ""));
        }
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {}); // left early: the connection is closed, and the server frees the slot
  }
}

/** GET or POST to the server; a Response that is fine, or a Trouble. An aborted request throws AbortError. */
export async function ask(path, key, body, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" };
  if (body) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Trouble("gone");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The server's own words on why not; its retry time where it gives one. */
async function refusal(response) {
  const text = await response.text().catch(() => "");
  let error;
  try {
    error = JSON.parse(text).error;
  } catch {
    error = undefined; // not this server's: a proxy between
  }
  const trouble = told(error, response.status);
  trouble.retryAfter = Number(response.headers.get("Retry-After")) || 0;
  if (!error) trouble.message = `HTTP ${response.status} ${response.statusText} ${text.slice(0, 200)}`.trim();
  return trouble;
}

/** An error object of the API as a Trouble; the server writes "message. hint: hint". */
function told(error, status) {
  const words = typeof error === "string" ? error : (error?.message ?? "");
  const at = words.indexOf(". hint: ");
  return at < 0 ? new Trouble(words, "", status) : new Trouble(words.slice(0, at) + ".", words.slice(at + 8), status);
}

/** Chunks of a streamed answer. A stream that ends without its end, or with an error in it, throws a Trouble. */
export async function* chunks(path, key, body, signal) {
  const response = await ask(path, key, body, signal);
  let complete = false;
  try {
    for await (const data of events(response.body)) {
      complete ||= data === "[DONE]";
      if (complete) continue; // read on to the end, so that the connection stays of use
      const chunk = JSON.parse(data);
      if (chunk.error) throw told(chunk.error, 200);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Trouble) throw error;
  }
  if (!complete) throw new Trouble("broken");
}
