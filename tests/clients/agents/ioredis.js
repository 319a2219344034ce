// ioredis as it comes, at the command of tests/clients/stock.rs.
//
// Each line of standard input is a request in JSON: id, do, client, port, commands. All
// are carried out at once; a line with its id and the replies is the answer.
"use strict";

const Redis = require("ioredis");

const clients = {};
const failed = (error) => ({ error: error.message });

async function carryOut({ do: what, client, port, commands }) {
  if (what === "open" || what === "pool") {
    // It has no pool: all share one connection. Without a listener it prints errors.
    clients[client] = new Redis(port).on("error", () => {});
    return [];
  }
  if (what === "call") {
    return [await clients[client].call(...commands[0])];
  }
  const all = await clients[client].pipeline(commands.map((words) => ["call", ...words])).exec();
  return all.map(([error, reply]) => (error ? failed(error) : reply));
}

require("node:readline").createInterface({ input: process.stdin }).on("line", async (line) => {
  const request = JSON.parse(line);
  const lost = (error) => (request.commands ?? []).map(() => failed(error));
  const replies = await carryOut(request).catch(lost);
  console.log(JSON.stringify({ id: request.id, replies }));
}).on("close", () => process.exit(0));
