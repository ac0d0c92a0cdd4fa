// A client of grpc-java over netty. Argument: ENCODING. It does what its standard input says, one act a line, as
// tests/block_node/grpc/foreign/peers.py writes them. Messages stay bytes.

import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;

public class GrpcJava {
    static final MethodDescriptor.Marshaller<byte[]> SAME = new MethodDescriptor.Marshaller<>() {
        public InputStream stream(byte[] message) {
            return new ByteArrayInputStream(message);
        }

        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    };
    static final Map<String, ManagedChannel> channels = new HashMap<>();
    static final Map<String, ClientCall<byte[], byte[]>> calls = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split(" ", -1);
            switch (fields[0]) {
                case "open" -> calls.put(fields[1], open(fields[1], fields[2], fields[3], arguments[0]));
                case "send" -> calls.get(fields[1]).sendMessage(Base64.getDecoder().decode(fields[2]));
                case "end" -> calls.get(fields[1]).halfClose();
                case "cancel" -> calls.get(fields[1]).cancel("as the test wants it", null);
                case "close" -> {
                    ManagedChannel channel = channels.remove(fields[1]);
                    if (channel != null) {
                        channel.shutdownNow();
                    }
                    say("closed " + fields[1]);
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.exit(0);
    }

    static synchronized void say(String line) {
        System.out.println(line);
    }

    static ClientCall<byte[], byte[]> open(String number, String port, String path, String encoding) {
        ManagedChannel channel = channels.computeIfAbsent(port, key -> NettyChannelBuilder
                .forAddress("127.0.0.1", Integer.parseInt(key))
                .usePlaintext()
                .maxInboundMessageSize(Integer.MAX_VALUE)
                .build());
        MethodDescriptor<byte[], byte[]> method = MethodDescriptor.<byte[], byte[]>newBuilder()
                .setType(MethodDescriptor.MethodType.BIDI_STREAMING)
                .setFullMethodName(path.substring(1))
                .setRequestMarshaller(SAME)
                .setResponseMarshaller(SAME)
                .build();
        ClientCall<byte[], byte[]> call = channel.newCall(method, CallOptions.DEFAULT.withCompression(encoding));
        call.start(new ClientCall.Listener<>() {
            @Override
            public void onMessage(byte[] message) {
                say("answer " + number + " " + Base64.getEncoder().encodeToString(message));
                call.request(1);
            }

            @Override
            public void onClose(Status status, Metadata trailers) {
                say("done " + number + " " + status.getCode().value());
            }
        }, new Metadata());
        call.setMessageCompression(true);
        call.request(1);
        return call;
    }
}
