// Messages from the network: what a rank encodes decodes to the same; anything else is an Error.
#include "train/launch/messages.h"

#include <gtest/gtest.h>

#include <functional>

#include "kernels/base/check.h"

namespace tessera::testing {
namespace {

TEST(Messages, DecodeToWhatWasEncoded) {
  const Hello hello = decode_hello(encode(Hello{
      .rank = 2, .size = 3, .name = "rank 2", .run = {.build = "build 1", .config = "a: 1\nb: \"x\"\n"}}));
  EXPECT_EQ(hello.rank, 2);
  EXPECT_EQ(hello.size, 3);
  EXPECT_EQ(hello.name, "rank 2");
  EXPECT_EQ(hello.run.build, "build 1");
  EXPECT_EQ(hello.run.config, "a: 1\nb: \"x\"\n");
  EXPECT_EQ(decode_welcome(encode(Welcome{.name = "rank 0"})).name, "rank 0");
  for (const Timeout timeout : {Timeout::kLimit, Timeout::kNone}) {
    const Heartbeat heartbeat =
        decode_heartbeat(encode(Heartbeat{.phases = 7, .timeout = timeout, .phase = "step 3"}));
    EXPECT_EQ(heartbeat.phases, 7);
    EXPECT_EQ(heartbeat.timeout, timeout);
    EXPECT_EQ(heartbeat.phase, "step 3");
  }
  const Shutdown shutdown =
      decode_shutdown(encode(Shutdown{.reporter = Shutdown::kNobody, .error = "no luck"}));
  EXPECT_EQ(shutdown.reporter, Shutdown::kNobody);
  EXPECT_EQ(shutdown.error, "no luck");
}

// A host name may hold any bytes; it is printed.
TEST(Messages, NamesArePrintable) {
  EXPECT_EQ(decode_welcome(encode(Welcome{.name = "\x1b[2J\xff"})).name, "\uFFFD[2J\uFFFD");
}

TEST(Messages, AnythingElseIsAnError) {
  const std::string deep(1 << 20, '['), open_objects = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += "{\"rank\":";
    return text;
  }();
  const std::string long_name = "{\"name\":\"" + std::string(2000, 'x') + "\"}";
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("{}"), std::string("{\"name\":7}"),
        std::string("{\"name\":[\"x\"]}"), std::string("{\"name\":\"x\""), std::string("\xff\xfe"),
        std::string("{\"rank\":1e99,\"phases\":1e99,\"reporter\":1e99}"),
        std::string("{\"rank\":99999999999,\"phases\":-1,\"reporter\":-2}"), std::string(1, '\0'), deep,
        open_objects, deep + std::string(1 << 20, ']'), long_name,
        "{\"name\":\"" + std::string(kMaxJsonBytes, 'x') + "\"}"}) {
    EXPECT_THROW(decode_hello(text), Error) << text.substr(0, 100);
    EXPECT_THROW(decode_welcome(text), Error) << text.substr(0, 100);
    EXPECT_THROW(decode_heartbeat(text), Error) << text.substr(0, 100);
    EXPECT_THROW(decode_shutdown(text), Error) << text.substr(0, 100);
  }
}

}  // namespace
}  // namespace tessera::testing
