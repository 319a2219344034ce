// node-redis as it comes, at the command of tests/clients/stock.rs.
//
// Each line of standard input is a request in JSON: id, do, client, port, commands. All
// are carried out at once; a line with its id and the replies is the answer.
"use strict";

const { createClient, createClientPool } = require("redis");

const clients = {};
const pools = new Set();
const plain = (reply) => (reply instanceof Error ? { error: reply.message } : reply);

async function carryOut({ do: what, client, port, commands }) {
  if (what === "open" || what === "pool") {
    if (what === "pool") pools.add(client);
    const make = what === "pool" ? createClientPool : createClient;
    clients[client] = make({ url: `redis://127.0.0.1:${port}` });
    // Without a listener an error ends the process.
    await clients[client].on("error", () => {}).connect();
    return [];
  }
  if (what === "call") {
    return [await clients[client].sendCommand(commands[0])];
  }
  // What is sent in one go is a pipeline; its own execAsPipeline tells the first error alone.
  const all = (one) => Promise.allSettled(commands.map((words) => one.sendCommand(words)));
  const settled = await (pools.has(client) ? clients[client].execute(all) : all(clients[client]));
  return settled.map(({ value, reason }) => reason ?? value);
}

require("node:readline").createInterface({ input: process.stdin }).on("line", async (line) => {
  const request = JSON.parse(line);
  const lost = (error) => (request.commands ?? []).map(() => error);
  const replies = (await carryOut(request).catch(lost)).map(plain);
  console.log(JSON.stringify({ id: request.id, replies }));
}).on("close", () => process.exit(0));
