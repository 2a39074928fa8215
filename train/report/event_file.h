// TensorBoard's event files, written without TensorBoard.
//
// Formats: the record framing of TensorFlow's TFRecord (tensorflow/core/lib/io/record_writer.h) and the
// messages Event, Summary and SessionLog of TensorBoard's event.proto and summary.proto, in the wire encoding
// of Protocol Buffers: only the parts that a scalar needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/descriptor.h"

namespace tessera {

// CRC-32C (Castagnoli) as RFC 3720 defines it; and masked, as a record stores it. A masked checksum is
// rotated and shifted, so that a checksum over bytes that contain checksums is no weaker.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

// A record: length, checksum of the length, the bytes, checksum of the bytes; all little-endian.
std::string event_record(std::string_view bytes);

// Writes a new file in `folder`, which is made if it does not exist. The file is created with the first
// event.
class EventFile {
 public:
  explicit EventFile(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Makes events of earlier files at this step and later ones invalid: the run continues from here.
  void start(int64_t step, double wall_time);
  void scalar(std::string_view tag, int64_t step, double wall_time, double value);
  // Appends the added events. Error: the folder or the file cannot be written. The events are then dropped,
  // and the next flush begins a new file.
  void flush();

 private:
  std::string open();  // returns the bytes with which a new file begins

  std::filesystem::path folder_, path_;
  Descriptor file_;
  std::string pending_;  // records that are not yet written
};

}  // namespace tessera
