// Small helpers to make elements; nothing is ever made from a string of HTML.
const SVG = "http://www.w3.org/2000/svg";
const SIGNS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" }; // invisible characters
const LONGEST = 18; // letters of a label

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A token's text with visible spaces, short enough for a picture. */
export function label(text) {
  const letters = [...text].map((letter) => SIGNS[letter] ?? letter);
  return (letters.length > LONGEST ? [...letters.slice(0, LONGEST - 1), "…"] : letters).join("") || "∅";
}

/** Columns that a text takes in a fixed-width font: East Asian letters and pictures are two wide. */
export function columns(text) {
  let total = 0;
  for (const letter of text) total += /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60]|\p{Extended_Pictographic}/u.test(letter) ? 2 : 1;
  return total;
}

export const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** The places of the bits that are set, lowest first. */
export function bits(set) {
  const found = [];
  for (let bit = 0; bit < 32; bit += 1) if ((set >>> bit) & 1) found.push(bit);
  return found;
}

/** The colour of a set of drafters, by its first; nothing for the model's own token. */
export const colour = (sources) => (sources ? String(bits(sources)[0] % 8) : undefined);
