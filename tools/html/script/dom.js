'use strict';
// Elements, texts of numbers, and work that waits for the next frame. Text becomes part of a report by textContent alone.

// Returns an element; `properties` are its own properties, `attributes` its attributes, `children` elements or texts.
function element(tag, properties = {}, children = [], attributes = {}) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);

// Two digits behind the point; the even one of two that are as near, as in the command.
function fixedText(value) {
  const low = Math.floor(value * 100);
  return value * 100 - low === 0.5 && low % 2 === 0 ? (low / 100).toFixed(2) : value.toFixed(2);
}

// "1.50 GiB", "512 bytes"; as the command writes sizes.
function bytesText(bytes) {
  const magnitude = Math.abs(bytes);
  if (magnitude < 1024) return `${Math.round(bytes)} bytes`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let scaled = magnitude;
  let unit = -1;
  while (scaled >= 1024 && unit + 1 < units.length) {
    scaled /= 1024;
    ++unit;
  }
  return `${bytes < 0 ? '−' : ''}${fixedText(scaled)} ${units[unit]}`;
}

const countText = (count) => Math.round(count).toLocaleString('en-US');
// "1 row", "9 rows".
const countOf = (count, one) => `${countText(count)} ${one}${count === 1 ? '' : 's'}`;
const percentText = (part) => `${(100 * part).toFixed(1)}\u00a0%`;

function durationText(microseconds) {
  if (microseconds < 1e3) return `${Math.round(microseconds)} µs`;
  if (microseconds < 1e6) return `${(microseconds / 1e3).toFixed(2)} ms`;
  if (microseconds < 6e7) return `${(microseconds / 1e6).toFixed(3)} s`;
  const minutes = Math.floor(microseconds / 6e7);
  return `${minutes} min ${((microseconds - minutes * 6e7) / 1e6).toFixed(1)} s`;
}

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// Returns a function that lets `work` run once in the next frame, however often it is called before.
function oncePerFrame(work) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      work();
    });
  };
}

// Returns a function that lets `work` run when it was not called for a while.
function afterPause(milliseconds, work) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds);
  };
}

// Gives a canvas the pixels of its place on the screen; returns its context, scaled to CSS pixels.
function sizedContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// Returns the text, or as much of its beginning as the width has room for, with an ellipsis; "" without room for five letters.
function fittedText(context, text, width) {
  const whole = context.measureText(text).width;
  if (whole <= width) return text;
  let length = Math.min(text.length - 1, Math.ceil((1.3 * text.length * width) / whole));
  while (length > 4 && context.measureText(`${text.slice(0, length)}…`).width > width) --length;
  return length > 4 ? `${text.slice(0, length)}…` : '';
}

// The one tooltip of the report.
const tip = {
  show(text, event) {
    const box = byId('tip');
    box.textContent = text;
    box.hidden = false;
    const left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
    const below = event.clientY + 16;
    const fits = below + box.offsetHeight < window.innerHeight;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${fits ? below : event.clientY - box.offsetHeight - 10}px`;
  },
  hide() {
    byId('tip').hidden = true;
  },
};
