// A client of grpc-java over netty. Arguments: PORT ENCODING. It makes the calls that its standard input names, one a
// line, as tests/block_node/grpc/foreign/foreign_client.py writes them. Messages stay bytes.

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
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

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

    public static void main(String[] arguments) throws Exception {
        ManagedChannel channel = NettyChannelBuilder.forAddress("127.0.0.1", Integer.parseInt(arguments[0]))
                .usePlaintext()
                .maxInboundMessageSize(Integer.MAX_VALUE)
                .build();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(make(channel, arguments[1], line.split(" ", -1)));
        }
        channel.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
    }

    static String make(ManagedChannel channel, String encoding, String[] fields) throws Exception {
        String ending = fields[2];
        String until = fields[3];
        MethodDescriptor<byte[], byte[]> method = MethodDescriptor.<byte[], byte[]>newBuilder()
                .setType(MethodDescriptor.MethodType.BIDI_STREAMING)
                .setFullMethodName(fields[0].substring(1))
                .setRequestMarshaller(SAME)
                .setResponseMarshaller(SAME)
                .build();
        CallOptions options = CallOptions.DEFAULT
                .withDeadlineAfter(Long.parseLong(fields[1]), TimeUnit.SECONDS)
                .withCompression(encoding);
        ClientCall<byte[], byte[]> call = channel.newCall(method, options);
        CompletableFuture<String> result = new CompletableFuture<>();
        StringBuilder answers = new StringBuilder();
        call.start(new ClientCall.Listener<>() {
            @Override
            public void onMessage(byte[] message) {
                String answer = Base64.getEncoder().encodeToString(message);
                answers.append(' ').append(answer);
                // A second answer may come before the node has seen the end.
                boolean isFirst = answers.indexOf(" ") == answers.lastIndexOf(" ");
                if (until.equals("any") ? isFirst : until.equals(answer)) {
                    end(call, ending);
                }
                call.request(1);
            }

            @Override
            public void onClose(Status status, Metadata trailers) {
                result.complete(status.getCode().value() + answers.toString());
            }
        }, new Metadata());
        call.setMessageCompression(true);
        call.request(1);
        for (int at = 4; at < fields.length; at++) {
            call.sendMessage(Base64.getDecoder().decode(fields[at]));
        }
        if (until.equals("-")) {
            end(call, ending);
        }
        return result.get();
    }

    static void end(ClientCall<byte[], byte[]> call, String ending) {
        if (ending.equals("cancel")) {
            call.cancel("in the middle", null);
        } else {
            call.halfClose();
        }
    }
}
