// Counts of an answer's steps, with the meanings of the server's own statistics: live first, the server's at the end.

export class Tally {
  steps = 0; // forwards that chose tokens, without prompt reading
  drafted = 0; // of these, with guesses
  verified = 0;
  accepted = 0;
  emitted = 0;
  seconds = 0;
  sizes = new Map(); // tokens in a forward -> steps of that size
  origins = new Map(); // who proposed -> tokens
  #server; // its final word

  step(step) {
    if (step.prefilled) return; // reading the prompt counts in no rate
    this.steps += 1;
    this.drafted += step.verified > 0;
    this.verified += step.verified;
    this.accepted += step.accepted;
    this.emitted += step.emitted;
    this.seconds += step.draft_s + step.forward_s + step.verify_s;
    bump(this.sizes, step.verified + step.padded + 1, 1);
  }

  segments(segments) {
    for (const { origin } of segments) bump(this.origins, origin, 1);
  }

  /** The statistics of the last chunk replace what was counted on the way. */
  settle(server) {
    this.#server = server;
    this.steps = server.steps;
    this.drafted = server.verify_steps;
    this.verified = server.verified;
    this.accepted = server.accepted;
    const drafters = Object.entries(server.by_drafter).filter(([, counts]) => counts.accepted);
    const guessed = drafters.reduce((sum, [, counts]) => sum + counts.accepted, 0);
    const own = Math.max(server.emitted + server.first_tokens - guessed, 0);
    this.origins = new Map([["target", own], ...drafters.map(([name, counts]) => [name, counts.accepted])]);
  }

  /** Tokens per second of decoding; NaN before there are any. */
  get speed() {
    return this.#server ? (this.#server.tokens_per_second ?? NaN) : this.emitted / this.seconds;
  }

  get rate() {
    return this.accepted / this.verified;
  }

  get length() {
    return this.#server ? (this.#server.mean_acceptance_length ?? NaN) : this.emitted / this.steps;
  }
}

function bump(counts, key, by) {
  counts.set(key, (counts.get(key) ?? 0) + by);
}
