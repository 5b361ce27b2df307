'use strict';
// Tables that sort by any column and show a part of their rows at first. On a narrow screen each row is a box (report.css): the
// text that says of what its numbers are stands first, and each number has the title of its column.

const FIRST_ROWS = 25;

const cellTexts = {
  text: (value) => String(value),
  bytes: bytesText,
  growth: (value) => (value > 0 ? `+${bytesText(value)}` : bytesText(value)),
  count: countText,
  part: percentText,
  number: (value) => (Number.isInteger(value) ? countText(value) : value.toPrecision(4)),
  time: (value) => new Date(1000 * value).toLocaleString(),
};

class DataTable {
  // `columns` are [title, kind]; a row is {cells, color, colorColumn, press}, all but `cells` optional.
  constructor(columns, sortedBy, caption) {
    this.columns = columns;
    this.sortedBy = sortedBy;
    this.isDescending = true;
    this.rows = [];
    this.shown = FIRST_ROWS;
    this.subject = columns[0][1] === 'text' ? 0 : columns.findLastIndex(([, kind]) => kind === 'text');
    this.status = element('span', {}, [], {role: 'status'});
    this.more = element('button', {type: 'button', textContent: 'Show more'});
    this.more.addEventListener('click', () => {
      this.shown += 4 * FIRST_ROWS;
      this.draw();
    });
    this.body = element('tbody');
    this.headers = columns.map(([title, kind], i) => this.header(title, kind, i));
    const table = element('table', {className: 'data'}, [element('caption', {className: 'hidden-text', textContent: caption}), element('thead', {}, [element('tr', {}, this.headers)]), this.body]);
    this.element = element('div', {}, [element('div', {className: 'scroll'}, [table]), element('div', {className: 'table-tools'}, [this.status, this.more])]);
  }

  header(title, kind, column) {
    const button = element('button', {type: 'button', textContent: title});
    button.addEventListener('click', () => {
      this.isDescending = this.sortedBy === column ? !this.isDescending : kind !== 'text';
      this.sortedBy = column;
      this.draw();
    });
    return element('th', {className: kind === 'text' ? '' : 'number'}, [button], {scope: 'col'});
  }

  setRows(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const column = this.sortedBy;
    if (column >= 0) this.rows.sort((a, b) => this.compare(a.cells[column], b.cells[column]));
    const largest = this.columns.map((_, i) => this.rows.reduce((most, row) => Math.max(most, typeof row.cells[i] === 'number' ? row.cells[i] : 0), 0));
    this.body.replaceChildren(...this.rows.slice(0, this.shown).map((row) => this.rowElement(row, largest)));
    this.headers.forEach((header, i) => header.setAttribute('aria-sort', i !== column ? 'none' : this.isDescending ? 'descending' : 'ascending'));
    this.status.textContent = this.shown < this.rows.length ? `${countText(this.shown)} of ${countOf(this.rows.length, 'row')}` : countOf(this.rows.length, 'row');
    this.more.hidden = this.rows.length <= this.shown;
  }

  // Cells without a value are last, whatever the order.
  compare(a, b) {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', {numeric: true});
    return this.isDescending ? -order : order;
  }

  rowElement(row, largest) {
    const cells = row.cells.map((value, i) => this.cell(value, this.columns[i][1], row, i, largest[i]));
    const made = element('tr', {}, cells);
    if (row.press !== undefined) {
      made.className = 'pressable';
      made.addEventListener('click', row.press);
    }
    return made;
  }

  cell(value, kind, row, column, largest) {
    const text = value === null || value === undefined ? '' : typeof value === 'number' ? cellTexts[kind](value) : String(value);
    const cell = element('td', {className: kind === 'text' ? 'text' : 'number', textContent: text});
    const title = this.columns[column][0].trim();
    if (column === this.subject) cell.classList.add('subject');
    else if (title !== '') cell.dataset.title = title;
    if (text === '') cell.classList.add('empty');
    if (kind === 'bytes' && value > 0 && column === 0) {
      cell.classList.add('bar');
      cell.style.setProperty('--part', `${(100 * value) / largest}%`);
    }
    if (kind === 'growth' && value > 0) cell.classList.add('grew');
    if (kind === 'text' && row.press !== undefined) {
      cell.textContent = '';
      const link = element('button', {type: 'button', textContent: text, className: 'plain'}, [], {'aria-label': `Search for ${text}`});
      cell.append(link);
    }
    if (kind === 'text' && row.color !== undefined && column === row.colorColumn) {
      const swatch = element('span', {className: 'swatch'});
      swatch.style.background = row.color;
      cell.prepend(swatch);
    }
    return cell;
  }
}

// A chart of a table's columns of bytes over its first column, of times.
class TableChart {
  constructor({title, columns, rows}) {
    this.lines = columns.map(([name, kind], i) => ({name, kind, data: rows.map((cells) => cells[i])})).filter(({kind}) => kind === 'bytes');
    this.times = rows.map(([time]) => time);
    this.chartElement = element('div', {className: 'chart'}, [], {role: 'img', 'aria-label': `${title}: ${this.lines.map(({name, data}) => `at most ${bytesText(Math.max(...data))} ${name}`).join(', ')}`});
    this.legend = element('div', {className: 'legend'}, [], {'aria-hidden': 'true'});
    this.element = element('div', {}, [this.legend, this.chartElement]);
    this.chart = null;
    this.draw();
    theme.listeners.push(() => this.draw());
    new ResizeObserver(oncePerFrame(() => this.chart.setSize({width: Math.max(200, this.chartElement.clientWidth), height: 240}))).observe(this.chartElement);
  }

  draw() {
    this.chart?.destroy();
    const colors = ['ink', 'accent', 'soft', 'mark'];
    const options = chartOptions(this.chartElement, 240, (value) => (value === 0 ? '0' : bytesText(value).replace('.00', '')));
    options.axes[1].splits = byteSplits;
    options.cursor.drag.x = false;
    options.scales = {y: {range: (_, low, high) => [0, Math.max(1, high) * 1.06]}};
    options.series = [{}, ...this.lines.map((_, i) => ({stroke: () => theme.colors[colors[i]], width: 2, points: {show: this.times.length < 3}}))];
    this.chart = new uPlot(options, [this.times, ...this.lines.map(({data}) => data)], this.chartElement);
    this.legend.replaceChildren(...this.lines.map(({name}, i) => strokeKey(name, colors[i], 'solid')));
  }
}

// A column that is empty in every row is left out.
function withoutEmptyColumns({columns, rows}) {
  const isShown = columns.map((_, i) => rows.some((cells) => cells[i] !== null && cells[i] !== ''));
  return {columns: columns.filter((_, i) => isShown[i]), rows: rows.map((cells) => cells.filter((_, i) => isShown[i]))};
}

// Labels and texts: a table without a header.
function figuresTable(rows, caption) {
  const lines = rows.map(([label, text]) => element('tr', {}, [element('th', {textContent: label}, [], {scope: 'row'}), element('td', {className: 'text', textContent: text})]));
  return element('table', {className: 'lines'}, [element('caption', {className: 'hidden-text', textContent: caption}), element('tbody', {}, lines)]);
}

// A table of the report, as the command made it.
function reportTable(described) {
  const {title, note, columns, rows} = described;
  const heading = [element('h2', {textContent: asSentence(title)})];
  if (note !== '') heading.push(element('p', {className: 'note', textContent: note}));
  let shown;
  if (columns.every(([name]) => name === '')) {
    shown = figuresTable(rows, title);
  } else {
    const told = withoutEmptyColumns({columns, rows});
    const table = new DataTable(told.columns, -1, title);
    table.setRows(told.rows.map((cells) => ({cells})));
    shown = table.element;
  }
  const chart = described.is_chart ? [new TableChart(described).element] : [];
  return element('section', {className: 'card'}, [element('div', {className: 'heading'}, heading), ...chart, shown], {'aria-label': title});
}
