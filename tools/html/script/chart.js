'use strict';
// Options and legends that all charts of the report share, and what they say of a moment.

const DASHES = {reserved: [], replayed: [9, 5], allocated: [], matching: []};  // long lines alone: dashes cost much

// Options that all charts of the report share.
function chartOptions(element, height, valueText, axisSize = 78) {
  const axis = {stroke: () => theme.colors.soft, grid: {stroke: () => theme.colors.grid, width: 1}, ticks: {stroke: () => theme.colors.line, width: 1}, font: '12px system-ui, "DejaVu Sans", sans-serif'};
  return {
    width: Math.max(200, element.clientWidth),
    height,
    legend: {show: false},
    padding: [10, 34, 0, 0],
    cursor: {drag: {x: true, y: false, setScale: false}, points: {show: false}, y: false},
    axes: [
      {...axis, space: 90, size: 32},
      {...axis, size: axisSize, values: (_, ticks) => ticks.map(valueText)},
    ],
  };
}

const stepped = uPlot.paths.stepped({align: 1});

// Ticks of bytes at multiples of powers of two.
function byteSplits(_, axis, low, high) {
  const wanted = (high - low) / 5;
  const step = 2 ** Math.ceil(Math.log2(Math.max(1, wanted)));
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

// Says in lines what is held at a moment.
function stateText(shared, moment) {
  const {run, pyramid} = shared;
  const state = pyramid.at(clamp(moment, 0, run.events));
  const lines = [`event ${countText(moment)} of ${countText(run.events)}${run.timeText(moment)}`];
  run.layouts.forEach((layout, i) => lines.push(`${bytesText(state[pyramid.reserved(i)])} reserved, ${layout.name}`));
  lines.push(`${bytesText(state[pyramid.allocated(0)])} allocated`);
  run.categories.map((name, i) => [name, state[i]]).filter(([, bytes]) => bytes > 0).sort((a, b) => b[1] - a[1])
    .forEach(([name, bytes]) => lines.push(`  ${bytesText(bytes)} ${name}`));
  return lines.join('\n');
}

// Keys of one group stay together: a line that is too long breaks between groups.
function showLegend(id, ...groups) {
  byId(id).replaceChildren(...groups.map((keys) => element('span', {className: 'keys'}, keys)));
}

function strokeKey(text, color, style) {
  const stroke = element('span', {className: 'stroke'});
  stroke.style.borderTopColor = theme.colors[color];
  stroke.style.borderTopStyle = style;
  return element('span', {className: 'key'}, [stroke, text]);
}
