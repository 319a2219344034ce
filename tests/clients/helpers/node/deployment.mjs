// Real servers for the tests: a data node and lock nodes, and proxies before them. All are stopped at the end, by their
// process ids.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import { createClient } from "redis";

const LOCKGATE = process.env.LOCKGATE_BINARY;
/** The longest time for anything to happen, in milliseconds: the machine may be busy. */
export const LIMIT = 60_000;
/** Of the data node. */
export const PASSWORD = "secret";
const running = new Set();
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));
process.on("SIGTERM", () => process.exit(1));

/** Waits until something is true. */
export async function eventually(what, isTrue) {
  for (const end = performance.now() + LIMIT; performance.now() < end; await sleep(20)) {
    if (await isTrue()) return;
  }
  throw new Error(`not within ${LIMIT} ms: ${what}`);
}

function start(program, words) {
  const child = spawn(program, words, { stdio: ["ignore", "ignore", "inherit"] });
  running.add(child);
  child.once("exit", () => running.delete(child));
  child.once("error", (error) => {
    console.error(`${program} cannot be run: ${error.message}`);
    process.exit(1);
  });
  return child;
}

export async function stop(child, signal = "SIGKILL") {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill(signal);
  await new Promise((resolve) => child.once("exit", resolve));
}

/** Claims a part of the ports that no other process has, as src/tools/free_port.rs does. Returns the first of them. */
async function claimPorts() {
  for (let part = 0; part < 8; part++) {
    const claim = createServer().unref();
    const isOurs = new Promise((resolve) => {
      claim.once("listening", () => resolve(true));
      claim.once("error", () => resolve(false));
    });
    claim.listen(`\0lockgate-ports-${part}`);
    if (await isOurs) return 10_000 + part * 2_750;
  }
  throw new Error("all ports are shared out");
}
let nextPort;

/** Returns a port that is free, another one each time: who gets it need not have taken it yet. */
export async function freePort() {
  nextPort ??= claimPorts().then((first) => ({ port: first }));
  const next = await nextPort;
  for (;;) {
    const server = createServer().listen(next.port++, "127.0.0.1");
    const port = await new Promise((resolve) => {
      server.once("listening", () => resolve(server.address().port));
      server.once("error", () => resolve());
    });
    await new Promise((resolve) => server.close(resolve));
    if (port) return port;
  }
}

async function answers(port) {
  const socket = connect(port, "127.0.0.1");
  const opened = await new Promise((resolve) => {
    socket.once("connect", () => resolve(true));
    socket.once("error", () => resolve(false));
  });
  socket.destroy();
  return opened;
}

/** A connected client of a library, in a version of the protocol: "ioredis", "ioredis 2", "redis", "redis 2". */
export async function open(library, port, more = {}) {
  const [name, protocol = "3"] = library.split(" ");
  if (name === "ioredis") {
    const options = { host: "127.0.0.1", port, password: PASSWORD, protocol: Number(protocol), ...more };
    const client = new Redis(options);
    client.on("error", () => {});
    await client.ping();
    return client;
  }
  const socket = { host: "127.0.0.1", port: Number(port), ...more.socket };
  const client = createClient({ password: PASSWORD, RESP: Number(protocol), ...more, socket });
  client.on("error", () => {});
  await client.connect();
  return client;
}

/** Sends a command over a client of either library. */
export function send(client, ...words) {
  return client.call ? client.call(...words) : client.sendCommand(words.map(String));
}

export class Deployment {

  /** Starts lock nodes, a data node with a password, and a proxy. `locks` are settings of the file. */
  static async start(locks) {
    const deployment = new Deployment();
    deployment.directory = mkdtempSync(join(tmpdir(), "lockgate-"));
    deployment.locks = locks;
    deployment.proxies = [];
    /** Process ids of upgraded proxies. */
    deployment.successors = [];
    const redis = async (...words) => {
      const port = await freePort();
      const options = ["--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", deployment.directory];
      const server = start("redis-server", [...options, "--loglevel", "warning", ...words]);
      return Object.assign(server, { port });
    };
    deployment.data = await redis("--requirepass", PASSWORD);
    deployment.nodes = [];
    for (let n = 0; n < 3; n++) deployment.nodes.push(await redis());
    for (const { port } of [deployment.data, ...deployment.nodes]) await eventually("a Redis", () => answers(port));
    deployment.proxy = await deployment.startProxy();
    return deployment;
  }

  /** Starts a proxy beside the others, with other settings of locks where some are given. */
  async startProxy(locks = {}) {
    const [port, admin] = [await freePort(), await freePort()];
    const file = join(this.directory, `${port}.yaml`);
    const lines = [
      `listen: 127.0.0.1:${port}`,
      `admin: 127.0.0.1:${admin}`,
      `data: redis://:${PASSWORD}@127.0.0.1:${this.data.port}`,
      `upgrade_socket: ${join(this.directory, `${port}.sock`)}`,
      "log: {level: error}",
      "guards: [{keys: 'account:*', lock: 'account:{1}'}]",
      "locks:",
      "  node_timeout: 500ms",
      ...Object.entries({ ...this.locks, ...locks }).map(([key, value]) => `  ${key}: ${value}`),
      "  nodes:",
      ...this.nodes.map((node) => `    - redis://127.0.0.1:${node.port}`),
    ];
    writeFileSync(file, `${lines.join("\n")}\n`);
    // New lock nodes vote at once.
    if (this.proxies.length === 0) execFileSync(LOCKGATE, ["init", file], { stdio: ["ignore", "ignore", "inherit"] });
    const proxy = Object.assign(start(LOCKGATE, ["--config", file]), { port, admin, file });
    this.proxies.push(proxy);
    await eventually("the proxy is ready", () => this.isReady(admin));
    return proxy;
  }

  isReady(admin) {
    return fetch(`http://127.0.0.1:${admin}/readyz`).then(
      (answer) => answer.ok,
      () => false,
    );
  }

  async stop() {
    for (const pid of this.successors) process.kill(pid, "SIGKILL");
    for (const server of [...this.proxies, this.data, ...this.nodes]) await stop(server);
    rmSync(this.directory, { recursive: true, force: true });
  }
}
