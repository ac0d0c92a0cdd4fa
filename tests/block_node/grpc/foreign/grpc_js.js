// A client of @grpc/grpc-js. Argument: ENCODING. It does what its standard input says, one act a line, as
// tests/block_node/grpc/foreign/peers.py writes them. Messages stay bytes.

const readline = require("node:readline");
const grpc = require("@grpc/grpc-js");

const [encoding] = process.argv.slice(2);
const same = (bytes) => bytes;
const clients = new Map();
const calls = new Map();

function open(number, port, path) {
  if (!clients.has(port)) {
    const client = new grpc.Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), {
      "grpc.default_compression_algorithm": grpc.compressionAlgorithms[encoding],
      "grpc.max_receive_message_length": -1,
      "grpc.max_send_message_length": -1,
    });
    clients.set(port, client);
  }
  const call = clients.get(port).makeBidiStreamRequest(path, same, same);
  calls.set(number, call);
  call.on("data", (message) => console.log(`answer ${number} ${message.toString("base64")}`));
  call.on("error", () => {});
  call.on("status", (status) => console.log(`done ${number} ${status.code}`));
}

function close(port) {
  clients.get(port)?.close();
  clients.delete(port);
  console.log(`closed ${port}`);
}

const acts = {
  open,
  close,
  send: (number, message) => calls.get(number).write(Buffer.from(message, "base64")),
  end: (number) => calls.get(number).end(),
  cancel: (number) => calls.get(number).cancel(),
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const [act, ...fields] = line.split(" ");
  acts[act](...fields);
});
