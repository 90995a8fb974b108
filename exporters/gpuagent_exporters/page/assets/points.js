// The points of the charts: a whole answer of /api/v1/history first, then only what is new since. A slot is an interval
// of the agent's boot clock. Every line is a Map from slot to value, so that an answer that overlaps replaces.

export class Points {
  #cursor = "";
  #gpus = new Map();
  #first = 0;
  #last = 0;
  #interval = 1;
  #lastTime = 0;

  // Asks the agent for what is new. Throws when it does not answer.
  async update() {
    let answer = await this.#ask(this.#cursor);
    if (!answer.whole && this.#misses(answer)) answer = await this.#ask("");
    if (answer.whole) this.#gpus.clear();
    this.#first = Math.max(answer.whole ? answer.first_slot : this.#first, answer.last_slot - answer.length + 1);
    this.#last = answer.last_slot;
    this.#interval = answer.interval_seconds;
    this.#lastTime = answer.time_seconds ?? 0;
    this.#cursor = answer.cursor;
    const present = new Map();
    for (const gpu of answer.gpus) present.set(gpu.gpu_uuid, this.#merge(gpu, answer));
    this.#gpus = present;
  }

  // Unix times, oldest first: the x axis of every line.
  get times() {
    const times = [];
    for (let slot = this.#first; slot <= this.#last; slot++) times.push(this.#lastTime - (this.#last - slot) * this.#interval);
    return times;
  }

  // The lines of one GPU, or null if nothing is known of it.
  of(uuid) {
    const gpu = this.#gpus.get(uuid);
    if (!gpu) return null;
    const processes = [...gpu.processes.values()].map(({ name, line }) => ({ name, values: this.#values(line) }));
    return { used: this.#values(gpu.used), busy: this.#values(gpu.busy), processes };
  }

  async #ask(cursor) {
    const query = cursor ? `?since=${encodeURIComponent(cursor)}` : "";
    const response = await fetch(`api/v1/history${query}`, { signal: AbortSignal.timeout(10_000) });
    if (!response.ok) throw new Error(`the agent answers ${response.status}`);
    return response.json();
  }

  // Whether a line came into the answer that has a past which was never sent.
  #misses(answer) {
    return answer.gpus.some((gpu) => {
      const known = this.#gpus.get(gpu.gpu_uuid);
      return !known || gpu.processes.some((one) => one.first_slot < answer.first_slot && !known.processes.has(keyOf(one)));
    });
  }

  #merge(gpu, answer) {
    const old = this.#gpus.get(gpu.gpu_uuid);
    const processes = new Map();
    for (const one of gpu.processes) {
      const line = this.#extend(old?.processes.get(keyOf(one))?.line, one.memory_used_bytes, answer);
      processes.set(keyOf(one), { name: `${one.process || "process"} (${one.pid})`, line });
    }
    return {
      used: this.#extend(old?.used, gpu.memory_used_bytes, answer),
      busy: this.#extend(old?.busy, gpu.utilization_ratio, answer),
      processes,
    };
  }

  #extend(line = new Map(), values, answer) {
    values.forEach((value, place) => line.set(answer.first_slot + place, value));
    for (const slot of line.keys()) if (slot < this.#first) line.delete(slot);
    return line;
  }

  #values(line) {
    const values = [];
    for (let slot = this.#first; slot <= this.#last; slot++) values.push(line.get(slot) ?? null);
    return values;
  }
}

// A pid that is used again began in another slot.
function keyOf(process) {
  return `${process.pid}/${process.gpu_instance_id}/${process.first_slot}`;
}
