// One figure per GPU: its memory with the largest processes, and below it how busy it is. Drawn by uPlot, which page.css
// cannot reach inside a canvas, so colors are read from the page's own variables. Lines differ by their dashes too.

/* global uPlot */

const GIB = 2 ** 30;
const MEMORY_HEIGHT = 150;
const BUSY_HEIGHT = 70;
const DASHES = [[8, 4], [2, 3], [10, 3, 2, 3], [14, 5], [1, 5], [5, 2]];
const drawn = new Map();

// Draws every figure of the page anew or with new points, and forgets figures that are gone.
export function draw(points) {
  for (const [figure, chart] of drawn) {
    if (figure.isConnected) continue;
    chart.destroy();
    drawn.delete(figure);
  }
  const times = points.times;
  for (const figure of document.querySelectorAll("figure.chart")) {
    const lines = points.of(figure.dataset.gpu);
    if (!lines || times.length < 2) continue;
    const names = JSON.stringify(lines.processes.map((process) => process.name));
    if (drawn.get(figure)?.names !== names) {
      drawn.get(figure)?.destroy();
      drawn.set(figure, new Chart(figure, lines.processes.map((process) => process.name), names));
    }
    drawn.get(figure).show(times, lines);
  }
}

// After a change of colors everything is made anew.
export function redraw(points) {
  for (const chart of drawn.values()) chart.destroy();
  drawn.clear();
  draw(points);
}

class Chart {
  constructor(figure, processes, names) {
    this.names = names;
    this.figure = figure;
    this.total = Number(figure.dataset.total) || null;
    const plots = element("div", "plots");
    plots.setAttribute("role", "img");
    this.legend = element("ul", "legend");
    figure.replaceChildren(plots, this.legend);
    this.labels = ["all", ...processes];
    this.entries = this.labels.map((label, place) => this.#entry(label, place));
    plots.append(caption("memory in use"));
    this.memory = new uPlot(this.#memoryOptions(), [[]], plots);
    plots.append(caption("busy"));
    this.busy = new uPlot(this.#busyOptions(), [[]], plots);
    this.plots = plots;
    this.observer = new ResizeObserver(() => this.#fit());
    this.observer.observe(figure);
  }

  show(times, { used, busy, processes }) {
    this.lines = [used, ...processes.map((process) => process.values)];
    this.memory.setData([times, ...this.lines]);
    this.busy.setData([times, busy.map((ratio) => (ratio === null ? null : ratio * 100))]);
    this.#tell(times.length - 1);
    this.plots.setAttribute("aria-label", this.#summary(times));
  }

  destroy() {
    this.observer.disconnect();
    this.memory.destroy();
    this.busy.destroy();
    this.figure.replaceChildren();
  }

  // The legend says the values under the cursor, else the newest ones.
  #tell(place) {
    this.entries.forEach((entry, line) => {
      const value = this.lines?.[line][place];
      entry.value.textContent = value === null || value === undefined ? "–" : gibibytes(value);
    });
  }

  #summary(times) {
    const [used] = this.lines;
    const highest = used.reduce((best, value, place) => (value !== null && !(used[best] >= value) ? place : best), 0);
    const now = used.at(-1) === null ? "not known" : gibibytes(used.at(-1));
    const minutes = Math.max(1, Math.round((times.at(-1) - times[0]) / 60));
    const peak = used[highest] === null ? "not known" : `${gibibytes(used[highest])} at ${clock(times[highest])}`;
    return `Memory of GPU ${this.figure.dataset.index} in the last ${minutes} min: now ${now}, highest ${peak}.`;
  }

  #entry(label, place) {
    const item = element("li");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", `swatch line-${place}`);
    svg.setAttribute("viewBox", "0 0 28 8");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    line.setAttribute("d", "M0 4H28");
    line.setAttribute("stroke-dasharray", dashesOf(place).join(" "));
    svg.append(line);
    const name = element("bdi");
    name.textContent = label;
    const value = element("b");
    item.append(svg, name, " ", value);
    this.legend.append(item);
    return { value };
  }

  #memoryOptions() {
    const series = this.labels.map((label, place) => ({
      label,
      stroke: color(`--line-${place}`),
      width: place === 0 ? 2 : 1.5,
      dash: dashesOf(place),
      points: { show: false },
    }));
    const top = this.total;
    return {
      ...this.#common(MEMORY_HEIGHT),
      series: [{}, ...series],
      scales: { y: { range: (_, low, high) => [0, top ?? Math.max(high, GIB)] } },
      axes: [axis({ show: false }), axis({ size: 64, values: (_, ticks) => ticks.map(gibibytes), incrs: BINARY })],
    };
  }

  #busyOptions() {
    return {
      ...this.#common(BUSY_HEIGHT),
      series: [{}, { label: "busy", stroke: color("--line-0"), width: 1, points: { show: false } }],
      scales: { y: { range: [0, 100] } },
      axes: [
        axis({ size: 24, values: (_, ticks) => ticks.map(clock), space: 60 }),
        axis({ size: 64, values: (_, ticks) => ticks.map((tick) => `${tick} %`), splits: () => [0, 50, 100] }),
      ],
    };
  }

  #common(height) {
    return {
      width: this.#width(),
      height,
      padding: [8, 8, 4, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: this.figure.dataset.gpu } },
      hooks: { setCursor: [(plot) => this.#tell(plot.cursor.idx ?? (this.lines?.[0].length ?? 1) - 1)] },
    };
  }

  #width() {
    return Math.max(160, this.figure.clientWidth);
  }

  #fit() {
    if (this.memory.width === this.#width()) return;
    this.memory.setSize({ width: this.#width(), height: MEMORY_HEIGHT });
    this.busy.setSize({ width: this.#width(), height: BUSY_HEIGHT });
  }
}

// Steps of the axis: powers of two, so that ticks are whole numbers of GiB.
const BINARY = Array.from({ length: 24 }, (_, power) => 2 ** (20 + power));

function axis(options) {
  const line = { stroke: color("--line"), width: 1 };
  return { stroke: color("--quiet"), font: "12px system-ui, sans-serif", grid: line, ticks: { ...line, size: 4 }, ...options };
}

function dashesOf(place) {
  return place === 0 ? [] : DASHES[(place - 1) % DASHES.length];
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function gibibytes(bytes) {
  const gib = bytes / GIB;
  return gib >= 10 || Number.isInteger(gib) ? `${Math.round(gib)} GiB` : `${gib.toFixed(1)} GiB`;
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
}

function caption(text) {
  const made = element("p", "quiet");
  made.textContent = text;
  return made;
}

function element(name, kind = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  return made;
}
