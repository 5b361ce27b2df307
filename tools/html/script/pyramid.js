'use strict';
// Memory over time at every level of detail: a chart asks for as many points as it has pixels, and gets the smallest and the
// largest state of each stretch, in time that does not depend on the number of events.
//
// A state is a row of numbers: requested bytes by category, then of each layout allocated and reserved bytes, then the bytes
// that match the search. The largest state is that with most requested bytes.

const BIN = 32;     // moments of a bin of the lowest level
const FACTOR = 4;  // bins of a level that make one of the next

class Pyramid {
  constructor(run, matchingStacks = null) {
    this.run = run;
    this.matchingStacks = matchingStacks;
    this.categories = run.categories.length;
    this.width = this.categories + 2 * run.layouts.length + 2;
    this.rest = this.width - 1;  // what is not on the report
    this.matching = this.width - 2;
    this.byEnd = orderByEvent(run.end, run.events);
    this.heldChanges = run.layouts.map((layout) => (layout.held.moment.length > 0 ? differences(layout.held) : rangeChanges(layout.ranges)));
    this.build();
  }

  allocated(layout) {
    return this.categories + 2 * layout;
  }
  reserved(layout) {
    return this.categories + 2 * layout + 1;
  }

  build() {
    const bins = Math.ceil((this.run.events + 1) / BIN);
    const level = this.emptyLevel(bins, BIN);
    this.starts = new Float64Array(bins * this.width);
    this.maxima = new Float64Array(this.width);
    this.peakMoment = 0;  // of allocated memory, as the commands have it
    this.peakTotal = -1;  // of requested memory
    this.peakTotalMoment = 0;
    let mostAllocated = -1;
    this.reservedPeaks = this.run.layouts.map(() => ({moment: 0, bytes: -1}));
    const walk = new Walk(this);
    for (let moment = 0; moment <= this.run.events; ++moment) {
      walk.to(moment);
      const bin = (moment / BIN) | 0;
      if (moment % BIN === 0) this.starts.set(walk.state, bin * this.width);
      this.take(level, bin, walk.state, walk.total, moment);
      if (walk.total > this.peakTotal) {
        this.peakTotal = walk.total;
        this.peakTotalMoment = moment;
      }
      if (walk.state[this.allocated(0)] > mostAllocated) {
        mostAllocated = walk.state[this.allocated(0)];
        this.peakMoment = moment;
      }
      for (let layout = 0; layout < this.reservedPeaks.length; ++layout) {
        const bytes = walk.state[this.reserved(layout)];
        if (bytes > this.reservedPeaks[layout].bytes) this.reservedPeaks[layout] = {moment, bytes};
      }
    }
    for (let bin = 0; bin < bins; ++bin) {
      for (let i = 0; i < this.width; ++i) this.maxima[i] = Math.max(this.maxima[i], level.high[bin * this.width + i]);
    }
    this.levels = [level];
    while (this.levels.at(-1).bins > FACTOR) this.levels.push(this.coarser(this.levels.at(-1)));
  }

  emptyLevel(bins, size) {
    return {
      bins,
      size,
      low: new Float64Array(bins * this.width),
      high: new Float64Array(bins * this.width),
      lowTotal: new Float64Array(bins).fill(Infinity),
      highTotal: new Float64Array(bins).fill(-1),
      lowMoment: new Uint32Array(bins),
      highMoment: new Uint32Array(bins),
      reserved: new Float64Array(bins * this.run.layouts.length),
    };
  }

  take(level, bin, state, total, moment) {
    if (total > level.highTotal[bin]) {
      level.highTotal[bin] = total;
      level.highMoment[bin] = moment;
      level.high.set(state, bin * this.width);
    }
    if (total < level.lowTotal[bin]) {
      level.lowTotal[bin] = total;
      level.lowMoment[bin] = moment;
      level.low.set(state, bin * this.width);
    }
    const layouts = this.run.layouts.length;
    for (let layout = 0; layout < layouts; ++layout) {
      const bytes = state[this.categories + 2 * layout + 1];
      if (bytes > level.reserved[bin * layouts + layout]) level.reserved[bin * layouts + layout] = bytes;
    }
  }

  coarser(fine) {
    const level = this.emptyLevel(Math.ceil(fine.bins / FACTOR), fine.size * FACTOR);
    for (let bin = 0; bin < fine.bins; ++bin) this.merge(level, (bin / FACTOR) | 0, fine, bin);
    return level;
  }

  merge(level, into, fine, bin) {
    const row = (array) => array.subarray(bin * this.width, (bin + 1) * this.width);
    const layouts = this.run.layouts.length;
    if (fine.highTotal[bin] > level.highTotal[into]) {
      level.highTotal[into] = fine.highTotal[bin];
      level.highMoment[into] = fine.highMoment[bin];
      level.high.set(row(fine.high), into * this.width);
    }
    if (fine.lowTotal[bin] < level.lowTotal[into]) {
      level.lowTotal[into] = fine.lowTotal[bin];
      level.lowMoment[into] = fine.lowMoment[bin];
      level.low.set(row(fine.low), into * this.width);
    }
    for (let layout = 0; layout < layouts; ++layout) {
      level.reserved[into * layouts + layout] = Math.max(level.reserved[into * layouts + layout], fine.reserved[bin * layouts + layout]);
    }
  }

  // Returns states between two moments, two for each of about `points` groups: {moments, values, reservedMaxima, highRows,
  // lowRows}. `values` are by place in the state; the rows are the numbers of the largest and smallest states of their groups.
  query(from, to, points) {
    const first = clamp(Math.floor(from), 0, this.run.events);
    const last = clamp(Math.ceil(to), first, this.run.events);
    const stride = (last - first + 1) / points;
    if (stride < BIN) return this.exact(first, last, Math.max(1, Math.ceil(stride)));
    let level = this.levels[0];
    for (const each of this.levels) {
      if (each.size <= stride) level = each;
    }
    const group = Math.max(1, Math.round(stride / level.size));
    const begin = Math.floor(first / level.size / group) * group;  // the same groups whatever the view: panning does not flicker
    const end = Math.min(level.bins - 1, Math.floor(last / level.size));
    return this.collect(level, begin, end, group);
  }

  // Every state, or those of stretches of so many moments.
  exact(first, last, stride) {
    const begin = Math.floor(first / stride) * stride;
    const level = this.emptyLevel(Math.floor((last - begin) / stride) + 1, stride);
    const walk = new Walk(this, Math.floor(begin / BIN));
    for (let moment = begin; moment <= last; ++moment) {
      walk.to(moment);
      this.take(level, Math.floor((moment - begin) / stride), walk.state, walk.total, moment);
    }
    return this.collect(level, 0, level.bins - 1, 1);
  }

  collect(level, begin, end, group) {
    const groups = this.emptyLevel(Math.max(0, Math.floor((end - begin) / group) + 1), level.size * group);
    for (let bin = begin; bin <= end; ++bin) this.merge(groups, Math.floor((bin - begin) / group), level, bin);
    const rows = [];
    for (let bin = 0; bin < groups.bins; ++bin) {
      const low = {moment: groups.lowMoment[bin], from: groups.low, bin};
      const high = {moment: groups.highMoment[bin], from: groups.high, bin};
      if (low.moment === high.moment) rows.push({...high, isOnly: true});
      else if (low.moment < high.moment) rows.push(low, high);
      else rows.push(high, low);
    }
    const rowsOf = (from) => rows.flatMap((row, i) => (row.from === from || row.isOnly ? [i] : []));
    return {...this.columnsOf(rows, groups), highRows: rowsOf(groups.high), lowRows: rowsOf(groups.low)};
  }

  columnsOf(rows, groups) {
    const moments = new Float64Array(rows.length);
    const values = Array.from({length: this.width}, () => new Float64Array(rows.length));
    const layouts = this.run.layouts.length;
    rows.forEach((row, i) => {
      moments[i] = row.moment;
      const at = row.bin * this.width;
      for (let k = 0; k < this.width; ++k) values[k][i] = row.from[at + k];
    });
    const reservedMaxima = Array.from({length: layouts}, (_, layout) => Float64Array.from(rows, (row) => groups.reserved[row.bin * layouts + layout]));
    return {moments, values, reservedMaxima};
  }

  // Returns the state at a moment.
  at(moment) {
    const walk = new Walk(this, Math.floor(moment / BIN));
    walk.to(moment);
    return walk.state;
  }
}

// Goes through the moments from the first of a bin, or from the begin.
class Walk {
  constructor(pyramid, bin = -1) {
    const {run} = pyramid;
    this.pyramid = pyramid;
    this.run = run;
    const past = bin * BIN + 1;  // the first moment that is not in the start's state
    const isStart = bin < 0;
    this.state = isStart ? new Float64Array(pyramid.width) : pyramid.starts.slice(bin * pyramid.width, (bin + 1) * pyramid.width);
    this.total = 0;
    for (let i = 0; i < pyramid.categories; ++i) this.total += this.state[i];
    this.total += this.state[pyramid.rest];
    this.nextBegin = isStart ? 0 : lowerBound(run.begin, past);
    this.nextEnd = isStart ? 0 : lowerBoundBy(pyramid.byEnd, past, (i) => run.end[i]);
    this.nextHeld = pyramid.heldChanges.map((changes) => (isStart ? 0 : lowerBound(changes.moment, past)));
    this.nextRest = isStart ? 0 : lowerBound(run.rest.moment, past);
  }

  // Lets everything up to and with the moment happen.
  to(moment) {
    const {run, pyramid} = this;
    while (this.nextEnd < pyramid.byEnd.length && run.end[pyramid.byEnd[this.nextEnd]] <= moment) this.change(pyramid.byEnd[this.nextEnd++], -1);
    while (this.nextBegin < run.count && run.begin[this.nextBegin] <= moment) this.change(this.nextBegin++, 1);
    for (let layout = 0; layout < this.nextHeld.length; ++layout) {
      const changes = pyramid.heldChanges[layout];
      while (this.nextHeld[layout] < changes.moment.length && changes.moment[this.nextHeld[layout]] <= moment) {
        this.state[pyramid.reserved(layout)] += changes.bytes[this.nextHeld[layout]++];
      }
    }
    while (this.nextRest < run.rest.moment.length && run.rest.moment[this.nextRest] <= moment) {
      this.total += run.rest.bytes[this.nextRest] - this.state[pyramid.rest];
      this.state[pyramid.rest] = run.rest.bytes[this.nextRest++];
    }
  }

  change(allocation, sign) {
    const {run, pyramid, state} = this;
    const bytes = sign * run.bytes.values[run.bytes.index[allocation]];
    state[run.category[allocation]] += bytes;
    this.total += bytes;
    const layouts = run.layouts;
    for (let layout = 0; layout < layouts.length; ++layout) {
      const block = layouts[layout].block;
      state[pyramid.categories + 2 * layout] += sign * block.values[block.index[allocation]];
    }
    if (pyramid.matchingStacks !== null && pyramid.matchingStacks[run.stackOf(allocation)] !== 0) state[pyramid.matching] += bytes;
  }
}

// Returns the numbers of those that end, in the order of their ends.
function orderByEvent(ends, events) {
  const places = new Uint32Array(events + 2);
  for (const end of ends) {
    if (end !== NEVER) ++places[end + 1];
  }
  for (let i = 1; i < places.length; ++i) places[i] += places[i - 1];
  const order = new Uint32Array(places[events + 1]);
  for (let i = 0; i < ends.length; ++i) {
    if (ends[i] !== NEVER) order[places[ends[i]]++] = i;
  }
  return order;
}

function differences({moment, bytes}) {
  return {moment, bytes: bytes.map((each, i) => each - (i === 0 ? 0 : bytes[i - 1]))};
}

function rangeChanges(ranges) {
  const changes = [];
  for (let i = 0; i < ranges.begin.length; ++i) {
    changes.push([ranges.begin[i], ranges.bytes[i]]);
    if (ranges.end[i] !== NEVER) changes.push([ranges.end[i], -ranges.bytes[i]]);
  }
  changes.sort((a, b) => a[0] - b[0]);
  return {moment: Uint32Array.from(changes, (each) => each[0]), bytes: Float64Array.from(changes, (each) => each[1])};
}

function lowerBound(sorted, value) {
  return lowerBoundBy(sorted, value, (each) => each);
}

// Returns the first place in the array whose key is not below the value.
function lowerBoundBy(array, value, keyOf) {
  let low = 0;
  let high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (keyOf(array[middle]) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
