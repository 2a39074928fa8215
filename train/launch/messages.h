// The content of the JSON messages between ranks. They come from the network: text that cannot be decoded is
// an Error, and so is text that is too long or too deeply nested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

inline constexpr size_t kMaxJsonBytes = size_t{1} << 24;  // configurations are a few KiB

// What must be equal on all ranks
struct RunIdentity {
  std::string build;   // names the program's version
  std::string config;  // lines of `key: value`
};

// From a rank that joins; it follows the secret.
struct Hello {
  int rank = 0, size = 0;
  std::string name;  // see name_of_this_process()
  RunIdentity run;
};

// To a rank that has joined.
struct Welcome {
  std::string name;  // of rank 0
};

enum class Timeout {
  kLimit,  // every rank must reach the next phase within the time limit of the first that does
  kNone    // this rank may take as long as it needs, as for a checkpoint or a sample
};

// How far a rank has come.
struct Heartbeat {
  int64_t phases = 0;  // how many phases it has entered
  Timeout timeout = Timeout::kNone;
  std::string phase = "startup";  // the name of the phase that it entered last
};

// Says that the run ends.
struct Shutdown {
  int reporter = 0;  // the rank that prints the error; kNobody: the launcher prints it
  std::string error;

  static constexpr int kNobody = -1;
};

// Bytes that are not UTF-8, which a host name may contain, are replaced.
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const Heartbeat& heartbeat);
std::string encode(const Shutdown& shutdown);

// Error: the text is not JSON, is too long or too deeply nested, or a value is missing or of another type.
Hello decode_hello(std::string_view text);
Welcome decode_welcome(std::string_view text);
Heartbeat decode_heartbeat(std::string_view text);
Shutdown decode_shutdown(std::string_view text);

}  // namespace tessera
