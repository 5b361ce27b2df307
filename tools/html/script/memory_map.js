'use strict';
// A map of device memory at the moment: rows of memory by address, segments one behind the other, blocks in the colours of
// their categories. All maps of a report have the same scale.

const ROW = 17;
const ROW_GAP = 3;
const ROWS = 18;

class MemoryMap {
  constructor(shared, layout, group) {
    this.shared = shared;
    this.layout = layout;
    this.group = group;
    this.title = element('span');
    this.canvas = element('canvas', {tabIndex: 0}, [], {role: 'application'});
    this.heading = element('b');
    this.element = element('div', {className: 'map'}, [element('h3', {}, [this.heading, this.title]), element('div', {className: 'surface'}, [this.canvas]), element('p', {className: 'readout'}, [], {role: 'status'})]);
    this.selected = -1;
    this.listen();
  }

  // ---- Of offsets: the held memory without the gaps between segments ----

  place() {
    const {run, moment} = this.shared;
    this.ranges = run.rangesAt(this.layout, moment);
    let offset = 0;
    for (const range of this.ranges) {
      range.offset = offset;
      offset += range.bytes;
    }
  }

  offsetOf(address) {
    let low = 0;
    let high = this.ranges.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.ranges[middle].address <= address) low = middle;
      else high = middle - 1;
    }
    const range = this.ranges[low];
    if (range === undefined || address < range.address || address >= range.address + range.bytes) return -1;
    return range.offset + address - range.address;
  }

  blockOf(allocation) {
    const {address, block} = this.shared.run.layouts[this.layout];
    return {address: address.values[address.index[allocation]], bytes: block.values[block.index[allocation]]};
  }

  // ---- Drawing ----

  draw() {
    const {shared} = this;
    this.place();
    this.width = this.canvas.parentElement.clientWidth;
    this.context = sizedContext(this.canvas, this.width, ROWS * (ROW + ROW_GAP));
    this.perRow = (this.group.to - this.group.from) / ROWS;
    for (const range of this.ranges) this.bar(range.offset, range.bytes, theme.colors.free);
    const shift = shared.matches === null ? 1 : 0.16;
    for (const allocation of shared.live) {
      const {address, bytes} = this.blockOf(allocation);
      const offset = this.offsetOf(address);
      if (offset < 0) continue;
      this.context.globalAlpha = shared.isDimmed(allocation) ? shift : 1;
      if (bytes > shared.run.bytesOf(allocation)) this.bar(offset, bytes, theme.colors.padding);
      this.bar(offset, Math.min(bytes, shared.run.bytesOf(allocation)), theme.category(shared.run.category[allocation]), bytes);
    }
    this.context.globalAlpha = 1;
    this.drawEdges();
    this.drawSelected();
    this.describe();
  }

  // A stretch of memory, over as many rows as it takes. Blocks wide enough to be seen as such get a seam.
  bar(offset, bytes, color, seamBytes = 0) {
    const {context, perRow, width} = this;
    const begin = Math.max(offset, this.group.from) - this.group.from;
    const end = Math.min(offset + bytes, this.group.to) - this.group.from;
    if (end <= begin) return;
    context.fillStyle = color;
    const seam = (seamBytes / perRow) * width > 4 ? 0.7 : 0;
    for (let row = Math.floor(begin / perRow); row * perRow < end && row < ROWS; ++row) {
      const left = (Math.max(begin - row * perRow, 0) / perRow) * width;
      const right = (Math.min(end - row * perRow, perRow) / perRow) * width;
      const isLast = (row + 1) * perRow >= end;
      context.fillRect(left, row * (ROW + ROW_GAP), Math.max(right - left - (isLast ? seam : 0), 0.35), ROW);
    }
  }

  // Where segments begin: where addresses have a gap, and between recorded segments.
  drawEdges() {
    const {context, perRow, width} = this;
    context.strokeStyle = theme.colors.edge;
    context.lineWidth = 1;
    context.beginPath();
    this.ranges.forEach((range, i) => {
      const before = this.ranges[i - 1];
      if (this.layout > 0 && before !== undefined && before.address + before.bytes === range.address) return;
      const offset = range.offset - this.group.from;
      if (offset < 0 || range.offset >= this.group.to) return;
      const row = Math.floor(offset / perRow);
      const x = Math.round(((offset - row * perRow) / perRow) * width) + 0.5;
      context.moveTo(x, row * (ROW + ROW_GAP) - 1);
      context.lineTo(x, row * (ROW + ROW_GAP) + ROW + 1);
    });
    context.stroke();
  }

  drawSelected() {
    if (this.selected < 0) return;
    const {address, bytes} = this.blockOf(this.selected);
    const offset = this.offsetOf(address) - this.group.from;
    if (offset + this.group.from < 0) return;
    const {context, perRow, width} = this;
    context.strokeStyle = theme.colors.mark;
    context.lineWidth = 2;
    for (let row = Math.max(0, Math.floor(offset / perRow)); row * perRow < offset + bytes && row < ROWS; ++row) {
      const left = (Math.max(offset - row * perRow, 0) / perRow) * width;
      const right = (Math.min(offset + bytes - row * perRow, perRow) / perRow) * width;
      context.strokeRect(left + 1, row * (ROW + ROW_GAP) + 1, Math.max(right - left - 2, 1), ROW - 2);
    }
  }

  describe() {
    const {run} = this.shared;
    let used = 0;
    for (const allocation of this.shared.live) used += this.blockOf(allocation).bytes;
    const held = this.shared.pyramid.at(this.shared.moment)[this.shared.pyramid.reserved(this.layout)];
    const free = Math.max(0, held - used);
    this.heading.textContent = run.layouts[this.layout].name;
    this.title.textContent = `${bytesText(held)} reserved, ${bytesText(free)} free (${percentText(held > 0 ? free / held : 0)})`;
    this.canvas.setAttribute('aria-label', `Memory map, ${run.layouts[this.layout].name}: ${this.title.textContent}, ${countOf(this.shared.live.length, 'block')} in ${countOf(this.ranges.length, 'segment')}`);
  }

  // ---- What the reader does ----

  offsetAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = clamp(Math.floor((event.clientY - box.top) / (ROW + ROW_GAP)), 0, ROWS - 1);
    return this.group.from + (row + clamp((event.clientX - box.left) / box.width, 0, 1)) * this.perRow;
  }

  allocationAt(offset) {
    for (const allocation of this.shared.live) {
      const {address, bytes} = this.blockOf(allocation);
      const begin = this.offsetOf(address);
      if (begin >= 0 && begin <= offset && offset < begin + bytes) return allocation;
    }
    return -1;
  }

  textAt(offset) {
    const allocation = this.allocationAt(offset);
    if (allocation >= 0) return this.shared.run.textOf(allocation, this.layout);
    const range = this.ranges.find((each) => each.offset <= offset && offset < each.offset + each.bytes);
    if (range === undefined) return '';
    return `free memory of the segment at 0x${range.address.toString(16)}, ${bytesText(range.bytes)}`;
  }

  listen() {
    let press = null;
    this.canvas.addEventListener('wheel', (event) => {
      event.preventDefault();
      this.group.zoom(2 ** (clamp(event.deltaY, -240, 240) / 240), this.offsetAt(event));
    }, {passive: false});
    this.canvas.addEventListener('pointerdown', (event) => {
      press = {x: event.clientX, y: event.clientY, from: this.group.from};
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener('pointermove', (event) => {
      if (press !== null) {
        const rows = (press.y - event.clientY) / (ROW + ROW_GAP) + (press.x - event.clientX) / this.width;
        this.group.move(press.from + rows * this.perRow);
        return;
      }
      const text = this.textAt(this.offsetAt(event));
      if (text === '') tip.hide();
      else tip.show(text, event);
    });
    this.canvas.addEventListener('pointerup', (event) => {
      if (press !== null && Math.hypot(event.clientX - press.x, event.clientY - press.y) < 4) this.select(this.allocationAt(this.offsetAt(event)));
      press = null;
    });
    this.canvas.addEventListener('pointerleave', () => tip.hide());
    this.canvas.addEventListener('keydown', (event) => this.key(event));
  }

  key(event) {
    const steps = {ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1};
    if (!(event.key in steps) || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    const order = [...this.shared.live].filter((each) => this.offsetOf(this.blockOf(each).address) >= 0).sort((a, b) => this.blockOf(a).address - this.blockOf(b).address);
    if (order.length === 0) return;
    const now = order.indexOf(this.selected);
    const next = now < 0 ? (steps[event.key] > 0 ? 0 : order.length - 1) : clamp(now + steps[event.key], 0, order.length - 1);
    this.select(order[next]);
  }

  select(allocation) {
    this.group.select(allocation);
  }

  showSelected(allocation) {
    this.selected = allocation;
    const readout = this.element.querySelector('.readout');
    readout.textContent = allocation < 0 ? '' : this.shared.run.textOf(allocation, this.layout).replaceAll('\n', ' · ');
  }
}

// The maps of all layouts: the same stretch, the same scale, the same selected allocation.
class MemoryMaps {
  constructor(shared) {
    this.shared = shared;
    this.maps = [];
    this.from = 0;
    this.to = 1;
    this.redraw = oncePerFrame(() => this.draw());
    shared.on('run', () => this.rebuild());
    shared.on('moment', () => this.draw());
    shared.on('search', () => this.redraw());
    theme.listeners.push(() => {
      if (shared.run !== null) this.drawLegend();
      this.redraw();
    });
    new ResizeObserver(() => this.redraw()).observe(byId('maps'));
    byId('map-all').addEventListener('click', () => this.showAll());
  }

  rebuild() {
    byId('maps-agree').hidden = this.shared.run.layouts.length < 2;
    this.maps = this.shared.run.layouts.map((_, layout) => new MemoryMap(this.shared, layout, this));
    byId('maps').replaceChildren(...this.maps.map((map) => map.element));
    this.from = 0;
    this.to = this.most();
    this.drawLegend();
  }

  // The most memory that any of the layouts holds at any time.
  most() {
    return Math.max(1, ...this.shared.pyramid.reservedPeaks.map((peak) => peak.bytes));
  }

  draw() {
    for (const map of this.maps) map.draw();
  }

  drawLegend() {
    const {run, pyramid} = this.shared;
    const key = (text, color) => {
      const swatch = element('span', {className: 'swatch'});
      swatch.style.background = color;
      return element('span', {className: 'key'}, [swatch, text]);
    };
    const categories = run.categories.map((name, i) => [name, i]).filter(([, i]) => pyramid.maxima[i] > 0).map(([name, i]) => key(name, theme.category(i)));
    showLegend('map-legend', categories, [key('rounding', theme.colors.padding), key('free, but reserved', theme.colors.free), element('span', {className: 'key', textContent: '│ a segment begins'})]);
  }

  zoom(factor, around) {
    const most = this.most();
    const length = clamp((this.to - this.from) * factor, Math.min(most, 4096), most);
    const begin = around - ((around - this.from) / (this.to - this.from)) * length;
    this.show(begin, length);
  }
  move(from) {
    this.show(from, this.to - this.from);
  }
  show(from, length) {
    this.from = clamp(from, 0, this.most() - length);
    this.to = this.from + length;
    this.redraw();
  }
  showAll() {
    this.show(0, this.most());
  }
  select(allocation) {
    for (const map of this.maps) map.showSelected(allocation);
    this.redraw();
  }
}
