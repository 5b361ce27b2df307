'use strict';
// A flame graph of the memory that lives at the moment: the width of a call is the memory that it and the calls inside it
// allocated. The outermost calls are at the top.

const CALL = 20;
const NO_CALL = -2;  // stands for memory whose call stack was not recorded, or has no frame that is shown

class FlameGraph {
  constructor(shared) {
    this.shared = shared;
    this.element = byId('flame');
    this.canvas = element('canvas');
    this.element.append(this.canvas);
    this.root = 0;
    this.selected = 0;
    this.level = 0;
    this.rectangles = [];
    this.redraw = oncePerFrame(() => this.draw());
    shared.on('run', () => this.rebuild());
    shared.on('pause', () => this.weigh());
    shared.on('search', () => this.redraw());
    theme.listeners.push(() => this.redraw());
    new ResizeObserver(() => this.redraw()).observe(this.element);
    byId('flame-all').addEventListener('click', () => this.zoomTo(0));
    this.listen();
  }

  setLevel(level) {
    this.level = level;
    this.rebuild();
    this.weigh();
  }

  // The tree of the calls that the level shows: what it hides is part of the call that made it.
  rebuild() {
    const {calls} = this.shared.run;
    const ids = new Map();
    this.parent = [0];
    this.frame = [-1];
    this.shownNode = new Uint32Array(calls.nodeCount);
    for (let node = 1; node < calls.nodeCount; ++node) {
      const parent = this.shownNode[calls.parent[node]];
      const frame = calls.frame[node];
      if (!calls.shows(frame, this.level)) {
        this.shownNode[node] = parent;
        continue;
      }
      const key = parent * (calls.file.length + 1) + frame;
      let id = ids.get(key);
      if (id === undefined) {
        id = this.parent.length;
        ids.set(key, id);
        this.parent.push(parent);
        this.frame.push(frame);
      }
      this.shownNode[node] = id;
    }
    this.root = 0;
    this.selected = 0;
  }

  weigh() {
    const {run, live} = this.shared;
    const bytes = new Float64Array(this.parent.length);
    const byStack = run.bytesByStack(live);
    byStack.forEach((sum, stack) => (bytes[this.shownNode[run.calls.nodeOfStack[stack]]] += sum));
    this.bytesOfNone = bytes[0];
    for (let node = bytes.length - 1; node > 0; --node) bytes[this.parent[node]] += bytes[node];
    this.bytes = bytes;
    this.children = Array.from({length: bytes.length}, () => []);
    for (let node = 1; node < bytes.length; ++node) {
      if (bytes[node] > 0) this.children[this.parent[node]].push(node);
    }
    for (const each of this.children) each.sort((a, b) => bytes[b] - bytes[a]);
    if (bytes[this.root] === 0) this.root = 0;
    this.draw();
  }

  // ---- Drawing ----

  draw() {
    if (this.bytes === undefined) return;
    const width = this.element.clientWidth;
    this.rectangles = [];
    this.placeCalls(width);
    const depth = Math.max(2, ...this.rectangles.map((each) => each.row + 1));
    const context = sizedContext(this.canvas, width, depth * CALL);
    context.font = '12px system-ui, "DejaVu Sans", sans-serif';
    context.textBaseline = 'middle';
    for (const each of this.rectangles) this.drawCall(context, each);
  }

  // Ancestors of the root are rows over the whole width; then the calls inside it.
  placeCalls(width) {
    const above = [];
    for (let node = this.root; node !== 0; node = this.parent[node]) above.unshift(this.parent[node]);
    above.forEach((node, row) => this.rectangles.push({node, row, left: 0, width, isAbove: true}));
    const waiting = [{node: this.root, row: above.length, left: 0, width}];
    while (waiting.length > 0) {
      const each = waiting.pop();
      this.rectangles.push(each);
      let left = each.left;
      for (const child of this.children[each.node]) {
        const part = (this.bytes[child] / this.bytes[each.node]) * each.width;
        if (part < 0.4) break;  // the others are smaller
        waiting.push({node: child, row: each.row + 1, left, width: part});
        left += part;
      }
      const rest = each.left + each.width - left;
      if (each.node === 0 && this.bytesOfNone > 0 && rest > 1) this.rectangles.push({node: NO_CALL, row: each.row + 1, left, width: rest});
    }
  }

  drawCall(context, {node, row, left, width, isAbove}) {
    const top = row * CALL;
    context.globalAlpha = isAbove ? 0.55 : this.isDimmed(node) ? 0.25 : 1;
    context.fillStyle = node <= 0 ? theme.colors[node === 0 ? 'padding' : 'free'] : this.colorOf(node);
    context.fillRect(left, top, Math.max(width - 0.8, 0.3), CALL - 1);
    context.globalAlpha = 1;
    if (node === this.selected && node !== 0) {
      context.strokeStyle = theme.colors.mark;
      context.lineWidth = 2;
      context.strokeRect(left + 1, top + 1, Math.max(width - 2.8, 1), CALL - 3);
    }
    if (width < 34) return;
    context.fillStyle = node <= 0 ? theme.colors.ink : theme.colors['flame-ink'];
    context.fillText(fittedText(context, this.nameOf(node), width - 9), left + 5, top + CALL / 2);
  }

  // A hue between yellow and orange by the file, so that calls of one file look alike.
  colorOf(node) {
    const {calls} = this.shared.run;
    const file = calls.texts[calls.file[this.frame[node]]];
    let hash = 0;
    for (let i = 0; i < file.length; ++i) hash = (hash * 31 + file.charCodeAt(i)) >>> 0;
    return `hsl(${24 + (hash % 32)} ${78 + (hash % 13)}% ${64 + ((hash >> 5) % 12)}%)`;
  }

  isDimmed(node) {
    if (this.shared.matches === null || node === 0) return false;
    if (node === NO_CALL) return true;
    return this.shared.matches.frames[this.frame[node]] === 0;
  }

  nameOf(node) {
    if (node === NO_CALL) return `no call of this code is recorded, ${bytesText(this.bytesOfNone)}`;
    if (node === 0) return `all live memory, ${bytesText(this.bytes[0])}`;
    return `${this.shared.run.calls.frameText(this.frame[node])}  ${bytesText(this.bytes[node])}`;
  }

  textOf(node) {
    const part = this.bytes[0] > 0 ? this.bytes[node] / this.bytes[0] : 0;
    return `${this.nameOf(node)}, ${percentText(part)} of live memory`;
  }

  // ---- What the reader does ----

  zoomTo(node) {
    this.root = node;
    this.select(node);
  }

  select(node) {
    this.selected = node;
    byId('flame-text').textContent = node === 0 ? '' : this.textOf(node);
    this.redraw();
  }

  nodeAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, row] = [event.clientX - box.left, Math.floor((event.clientY - box.top) / CALL)];
    return this.rectangles.find((each) => each.row === row && each.left <= x && x < each.left + each.width)?.node ?? -1;
  }

  listen() {
    this.canvas.addEventListener('pointermove', (event) => {
      const node = this.nodeAt(event);
      if (node < 0) tip.hide();
      else tip.show(this.textOf(node), event);
    });
    this.canvas.addEventListener('pointerleave', () => tip.hide());
    this.canvas.addEventListener('click', (event) => {
      const node = this.nodeAt(event);
      if (node >= 0) this.zoomTo(node);
    });
    this.element.addEventListener('keydown', (event) => this.key(event));
  }

  key(event) {
    if (event.shiftKey) return;
    const siblings = this.children[this.parent[this.selected]];
    const place = siblings.indexOf(this.selected);
    const next = {
      ArrowDown: this.children[this.selected][0],
      ArrowUp: this.parent[this.selected],
      ArrowLeft: siblings[place - 1],
      ArrowRight: siblings[place + 1],
    };
    if (event.key === 'Enter') this.zoomTo(this.selected);
    else if (event.key in next) this.select(next[event.key] ?? this.selected);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
