// A client of @grpc/grpc-js. Arguments: PORT ENCODING. It makes the calls that its standard input names, one a line, as
// tests/block_node/grpc/foreign/foreign_client.py writes them. Messages stay bytes.

const readline = require("node:readline");
const grpc = require("@grpc/grpc-js");

const [port, encoding] = process.argv.slice(2);
const same = (bytes) => bytes;
const client = new grpc.Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), {
  "grpc.default_compression_algorithm": grpc.compressionAlgorithms[encoding],
  "grpc.max_receive_message_length": -1,
  "grpc.max_send_message_length": -1,
});

function make(line) {
  const [path, seconds, ending, until, ...requests] = line.split(" ");
  return new Promise((resolve) => {
    const call = client.makeBidiStreamRequest(path, same, same, { deadline: Date.now() + seconds * 1000 });
    const answers = [];
    const end = () => (ending === "cancel" ? call.cancel() : call.end());
    call.on("data", (message) => {
      answers.push(message.toString("base64"));
      if (until === "any" || until === answers.at(-1)) end();
    });
    call.on("error", () => {});
    call.on("status", (status) => resolve([status.code, ...answers].join(" ")));
    for (const request of requests) call.write(Buffer.from(request, "base64"));
    if (until === "-") end();
  });
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) console.log(await make(line));
  client.close();
}

main();
