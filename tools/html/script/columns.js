'use strict';
// The report's data: JSON, and columns of numbers as tools/output/html_report.h encodes them.

class Columns {
  constructor(bytes, directory) {
    this.bytes = bytes;
    this.directory = directory;
  }

  has(name) {
    return name in this.directory;
  }

  // Returns the column as numbers; those beyond 2^53 lose their lowest digits, which only hostile files have.
  numbers(name) {
    const [encoding, rows, at] = this.directory[name];
    const values = new Float64Array(rows);
    this.decode(at, rows, values);
    if (encoding === 'deltas') addUp(values);
    return values;
  }

  // Returns a column of numbers below 2^32.
  integers(name) {
    const [encoding, rows, at] = this.directory[name];
    if (encoding === 'deltas') return Uint32Array.from(this.numbers(name));
    const values = new Uint32Array(rows);
    this.decode(at, rows, values);
    return values;
  }

  // Returns a ranked column: values[index[row]] is the number of a row.
  ranked(name) {
    return {index: this.integers(name), values: this.numbers(`${name}.values`)};
  }

  decode(at, rows, values) {
    const bytes = this.bytes;
    for (let row = 0; row < rows; ++row) {
      let byte = bytes[at++];
      if (byte < 128) {
        values[row] = byte;
        continue;
      }
      let number = byte & 127;
      let scale = 128;
      do {
        byte = bytes[at++];
        number += (byte & 127) * scale;
        scale *= 128;
      } while (byte >= 128);
      values[row] = number;
    }
  }
}

// Makes numbers of zigzag differences.
function addUp(values) {
  let number = 0;
  for (let i = 0; i < values.length; ++i) {
    const code = values[i];
    number += code % 2 === 0 ? code / 2 : -(code + 1) / 2;
    values[i] = number;
  }
}

function bytesOfBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; ++i) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

// Returns {document, columns} of the report, and releases the text that held them.
async function readReportData() {
  const holder = byId('data');
  const deflated = bytesOfBase64(holder.textContent);
  holder.remove();
  const stream = new Blob([deflated]).stream().pipeThrough(new DecompressionStream('deflate'));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const decoder = new TextDecoder();
  const length = parseInt(decoder.decode(bytes.subarray(0, 8)), 16);
  const report = JSON.parse(decoder.decode(bytes.subarray(8, 8 + length)));
  return {report, columns: new Columns(bytes.subarray(8 + length), report.columns)};
}
