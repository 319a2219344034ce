// Rounds that the test asks for, one for each line of input: see redis_py.py.
"use strict";

const { createInterface } = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");

// Milliseconds: a round that takes longer has failed.
const LIMIT = 40_000;

exports.KEYS = Array.from({ length: 64 }, (_, index) => index);

exports.rounds = async (round, nodes) => {
  let number = 0;
  for await (const _ of createInterface({ input: process.stdin })) {
    const end = Date.now() + LIMIT;
    let last = "";
    for (;;) {
      try {
        await round(number);
        break;
      } catch (error) {
        last = error;
        if (error.code === "ERR_ASSERTION" || Date.now() > end) throw error;
        await sleep(100);
      }
    }
    number += 1;
    console.log("round", String(last));
  }
  console.log("nodes", ...nodes());
  process.exit(0);
};
