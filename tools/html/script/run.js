'use strict';
// One run: a device's allocations with their lifetimes, where allocators put them, and the calls that made them.
//
// A moment m is the number of events that have happened, 0 to `events`: 0 is before the history begins.

const NEVER = 0xffffffff;
const TORCH = 2;  // origin of the frames of PyTorch's Python; 3: C++ and the interpreter
const NO_STACK = -1;
const NO_PYTHON = -2;

class Run {
  constructor(description, columns, texts) {
    Object.assign(this, description);
    const numbers = (name) => columns.numbers(this.prefix + name);
    const integers = (name) => columns.integers(this.prefix + name);
    const ranked = (name) => columns.ranked(this.prefix + name);
    this.times = numbers('times');
    this.begin = integers('begin');
    this.end = this.endsOf(integers('length'));
    this.bytes = ranked('bytes');
    this.stack = ranked('stack');
    this.category = Uint8Array.from(integers('category'));
    this.stream = integers('stream');
    this.pool = integers('pool');
    this.count = this.begin.length;
    this.calls = new Calls(integers, texts);
    // A trace has no categories: its memory has one colour, and a name that says what is known.
    if (this.category.every((each) => this.categories[each] === 'unknown')) {
      this.category.fill(0);
      this.categories = ['requested'];
    }
    this.layouts = description.layouts.map((name, i) => ({
      name,
      address: ranked(`${i}.address`),
      block: ranked(`${i}.block`),
      ranges: this.rangesOf(integers(`${i}.range_begin`), integers(`${i}.range_end`), numbers(`${i}.range_address`), ranked(`${i}.range_bytes`)),
      held: {moment: integers(`${i}.held_event`), bytes: numbers(`${i}.held_bytes`)},
    }));
    this.rest = {moment: integers('rest_event'), bytes: numbers('rest_bytes')};
    this.buffer = new Uint32Array(1024);
    this.stageSpans = this.spansOf(description.stages);
  }

  // Annotations as stretches of moments, nested; they may end in any order: [{name, from, to, depth}].
  spansOf(marks) {
    const spans = [];
    const open = [];
    const momentOf = (time) => this.momentAtTime(time - (this.times[0] ?? 0));
    for (const [name, time, begins] of marks) {
      if (begins) {
        open.push({name, from: momentOf(time), to: this.events, depth: open.length === 0 ? 0 : open.at(-1).depth + 1});
        spans.push(open.at(-1));
        continue;
      }
      const ended = open.findLastIndex((span) => span.name === name);
      if (ended >= 0) open.splice(ended, 1)[0].to = momentOf(time);
    }
    return spans;
  }

  endsOf(lengths) {
    const ends = new Uint32Array(lengths.length);
    for (let i = 0; i < ends.length; ++i) ends[i] = lengths[i] === 0 ? NEVER : this.begin[i] + lengths[i];
    return ends;
  }

  rangesOf(begin, end, address, bytes) {
    return {begin, end: end.map((each) => (each === 0 ? NEVER : each)), address, bytes: Float64Array.from(bytes.index, (rank) => bytes.values[rank])};
  }

  // Returns ", 4.255 s"; "" where times were not recorded, as in traces.
  timeText(moment) {
    return this.has_times ? `, ${durationText(this.timeAt(moment))}` : '';
  }

  // Returns microseconds since the first event.
  timeAt(moment) {
    const last = this.times.length - 1;
    if (last < 0) return 0;
    const place = Math.max(0, moment - 1) / this.time_step;
    const before = Math.min(Math.floor(place), last);
    const after = Math.min(before + 1, last);
    return this.times[before] + (this.times[after] - this.times[before]) * Math.min(1, place - before) - this.times[0];
  }

  // Returns the last moment that is not after the time.
  momentAtTime(time) {
    let low = 0;
    let high = this.events;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.timeAt(middle) <= time) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  // Returns the allocations that live at the moment; valid until the next call.
  liveAt(moment) {
    const {begin, end} = this;
    let found = 0;
    for (let i = 0; i < this.count && begin[i] <= moment; ++i) {
      if (end[i] <= moment) continue;
      if (found === this.buffer.length) this.growBuffer();
      this.buffer[found++] = i;
    }
    return this.buffer.subarray(0, found);
  }

  growBuffer() {
    const larger = new Uint32Array(this.buffer.length * 2);
    larger.set(this.buffer);
    this.buffer = larger;
  }

  bytesOf(allocation) {
    return this.bytes.values[this.bytes.index[allocation]];
  }

  stackOf(allocation) {
    return this.stack.values[this.stack.index[allocation]];
  }

  // Returns the ranges of a layout that are held at the moment, by address.
  rangesAt(layout, moment) {
    const {begin, end, address, bytes} = this.layouts[layout].ranges;
    const held = [];
    for (let i = 0; i < begin.length && begin[i] <= moment; ++i) {
      if (end[i] > moment) held.push({address: address[i], bytes: bytes[i], offset: 0});
    }
    return held.sort((a, b) => a.address - b.address);
  }

  // Returns requested bytes by stack, of the allocations given.
  bytesByStack(allocations) {
    const sums = new Float64Array(this.calls.stackCount);
    for (const allocation of allocations) sums[this.stackOf(allocation)] += this.bytesOf(allocation);
    return sums;
  }

  textOf(allocation, layout) {
    const {address, block} = this.layouts[layout];
    const lines = [
      `${bytesText(this.bytesOf(allocation))} requested, block of ${bytesText(block.values[block.index[allocation]])}`,
      `${this.categories[this.category[allocation]]}, stream ${this.streams[this.stream[allocation]]}, pool ${this.pools[this.pool[allocation]]}`,
      `address 0x${address.values[address.index[allocation]].toString(16)}, ${this.lifeText(allocation)}`,
      ...this.calls.stackTexts(this.stackOf(allocation)).slice(0, 8),
    ];
    return lines.join('\n');
  }

  lifeText(allocation) {
    const begin = this.begin[allocation] === 0 ? 'from before the recording' : `from event ${countText(this.begin[allocation])}`;
    const end = this.end[allocation] === NEVER ? 'to the end' : `to event ${countText(this.end[allocation])}`;
    return `${begin} ${end}`;
  }
}

// The calls that allocated, as a tree; node 0 is the root, which is no call.
class Calls {
  constructor(integers, texts) {
    this.texts = texts;
    this.nodeOfStack = integers('node');
    this.stackCount = this.nodeOfStack.length;
    this.knownCount = this.nodeOfStack.reduce((count, node) => count + (node === 0 ? 0 : 1), 0);
    const parents = integers('parent');
    const frames = integers('frame');
    this.nodeCount = parents.length + 1;
    this.parent = new Uint32Array(this.nodeCount);
    this.frame = new Uint32Array(this.nodeCount);
    this.parent.set(parents, 1);
    this.frame.set(frames, 1);
    this.file = integers('file');
    this.function = integers('function');
    this.line = integers('line');
    this.origin = integers('origin');
  }

  // "model.py:42 in forward"; a path is cut to its last two parts.
  frameText(frame) {
    const file = this.texts[this.file[frame]].split('/').slice(-2).join('/');
    const line = this.line[frame];
    const name = this.texts[this.function[frame]];
    const place = line === 0 ? file : `${file}:${line}`;
    if (place === '' || place === '??') return name;
    return name === '' ? place : `${place} in ${name}`;
  }

  // Returns whether frames of `level` show a frame: 0 own code, 1 libraries, 3 all.
  shows(frame, level) {
    return this.origin[frame] <= level;
  }

  // Returns the lines of a stack, the newest call first.
  stackTexts(stack) {
    const lines = [];
    for (let node = this.nodeOfStack[stack]; node !== 0; node = this.parent[node]) lines.push(this.frameText(this.frame[node]));
    return lines;
  }

  // Returns the newest frame that the level shows, else the newest of Python; NO_STACK or NO_PYTHON without one.
  place(stack, level) {
    const innermost = this.nodeOfStack[stack];
    if (innermost === 0) return NO_STACK;
    for (const shown of [level, TORCH]) {
      for (let node = innermost; node !== 0; node = this.parent[node]) {
        if (this.shows(this.frame[node], Math.min(shown, TORCH))) return this.frame[node];
      }
    }
    return NO_PYTHON;
  }

  // Returns the text of a place.
  placeText(place) {
    if (place === NO_STACK) return '(no call stack was recorded)';
    if (place === NO_PYTHON) return '(no Python code, such as a backward pass)';
    return this.frameText(place);
  }

  // Returns by stack whether a call of it has the words in its file, function or line.
  matches(words) {
    const wanted = words.toLowerCase();
    const frameMatches = Uint8Array.from(this.file, (_, frame) => {
      const whole = `${this.texts[this.file[frame]]}:${this.line[frame]} in ${this.texts[this.function[frame]]}`;
      return whole.toLowerCase().includes(wanted) ? 1 : 0;
    });
    const nodeMatches = new Uint8Array(this.nodeCount);
    for (let node = 1; node < this.nodeCount; ++node) nodeMatches[node] = nodeMatches[this.parent[node]] | frameMatches[this.frame[node]];
    return {frames: frameMatches, stacks: Uint8Array.from(this.nodeOfStack, (node) => nodeMatches[node])};
  }
}
