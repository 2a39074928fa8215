#include "kernels/base/checksum.h"

#include <fmt/core.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tessera {
namespace {

std::string digits_of(const XXH128_hash_t& hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

struct Checksum::State {
  XXH3_state_t xxh;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Checksum::~Checksum() = default;

void Checksum::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

std::string Checksum::digits() const { return digits_of(XXH3_128bits_digest(&state_->xxh)); }

std::string checksum_of(std::span<const std::byte> bytes) {
  return digits_of(XXH3_128bits(bytes.data(), bytes.size()));
}

}  // namespace tessera
