"use strict";
// Patterns of torchtap over the sites of a page: [!]PATH[@TYPE][:PORTS][[LEAF]], in a list. A word
// without any sign of a pattern is looked for in the text of the site.

const FLOW_PORTS = ["input", "output", "grad_input", "grad_output"];
const ALL_PORTS = [...FLOW_PORTS, "param", "param_grad", "step_grad", "update", "buffer", "saved"];

function globExpression(glob) {
  let found = "";
  for (let at = 0; at < glob.length; at++) {
    const one = glob[at];
    const end = one === "[" ? glob.indexOf("]", at + 2) : -1;
    if (one === "*") found += "[^]*";
    else if (one === "?") found += "[^]";
    else if (end > 0) {
      const inside = glob.slice(at + 1, end).replace(/\\/g, "\\\\").replace(/^!/, "^");
      found += `[${inside}]`;
      at = end;
    } else found += one.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  }
  return new RegExp(`^${found}$`);
}

function parsePattern(text) {
  const isNegated = text.startsWith("!");
  let rest = isNegated ? text.slice(1) : text;
  if (!isNegated && rest !== "." && !/[*?@:[]/.test(rest)) {
    const word = rest.toLowerCase();
    return { isNegated, matches: (name) => name.toLowerCase().includes(word) };
  }
  const isExpression = rest.startsWith("re:");
  if (isExpression) rest = rest.slice(3);
  let ports = isNegated ? ALL_PORTS : ["output"];
  let leaf = null;
  const tail = rest.match(/^([^]*):([a-z_*,]+)(?:\[([^\]]*)\])?$/);
  if (tail) {
    rest = tail[1];
    leaf = tail[3] ?? null;
    ports = tail[2].split(",").flatMap((one) => (one === "*" ? FLOW_PORTS : [one]));
    const unknown = ports.find((one) => !ALL_PORTS.includes(one));
    if (unknown !== undefined) throw new Error(`There is no port '${unknown}'.`);
  }
  let type = null;
  const at = rest.lastIndexOf("@");
  if (at >= 0) {
    type = globExpression(rest.slice(at + 1));
    rest = rest.slice(0, at);
  }
  if (rest === ".") rest = "";
  const path = isExpression ? new RegExp(`^(?:${rest})$`) : globExpression(rest);
  const leaves = leaf === null ? null : globExpression(leaf);
  return {
    isNegated,
    matches: (name, site, types) =>
      ports.includes(site.port) &&
      path.test(site.path) &&
      (type === null || types.some((one) => type.test(one))) &&
      (leaves === null || leaves.test(site.leaf) || site.leaf.startsWith(`${leaf}.`)),
  };
}

// Return a function (name, site, types) -> bool; raises where a pattern cannot be read.
function parseFilter(text) {
  const words = text.split(/[\s;]+|,(?=\s|$)/).filter((one) => one && one !== ",");
  const parsed = words.map(parsePattern);
  const wanted = parsed.filter((one) => !one.isNegated);
  const refused = parsed.filter((one) => one.isNegated);
  return (...site) =>
    (!wanted.length || wanted.some((one) => one.matches(...site))) &&
    !refused.some((one) => one.matches(...site));
}
