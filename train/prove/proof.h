// Proof: what was compared, on how many tokens, how large the largest difference is, how much is allowed, and
// why.
#pragma once

#include <cmath>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/words.h"

namespace tessera {

enum class Verdict : uint8_t { kOk, kFailed, kReported, kSkipped };
constexpr auto words_of(Verdict) {
  return std::array{Word{"ok", Verdict::kOk}, Word{"FAILED", Verdict::kFailed},
                    Word{"reported", Verdict::kReported}, Word{"skipped", Verdict::kSkipped}};
}

// ||a - b|| and ||b||, and the largest element of a - b
class Difference {
 public:
  void add(double found, double expected) {
    const double d = found - expected;
    squares_ += d * d, reference_ += expected * expected;
    see_largest(std::abs(d));
    ++count_;
  }
  void add(const Difference& more) {
    squares_ += more.squares_, reference_ += more.reference_;
    see_largest(more.largest_);
    count_ += more.count_;
  }
  // `expected` may be longer. The sum is the same with any number of threads.
  void add(std::span<const float> found, std::span<const float> expected);
  // The difference divided by ||b||, or by `least` if that is larger; NaN if any element is NaN
  double relative(double least = 0) const {
    const double norm = std::fmax(std::sqrt(reference_), least);
    return norm > 0 ? std::sqrt(squares_) / norm : squares_ > 0 ? INFINITY : squares_;
  }
  double norm() const { return std::sqrt(reference_); }
  double largest() const { return largest_; }
  int64_t count() const { return count_; }

 private:
  void see_largest(double x) {  // once NaN, the largest value stays NaN
    if (!(x <= largest_) && largest_ == largest_) largest_ = x;
  }

  double squares_ = 0, reference_ = 0, largest_ = 0;
  int64_t count_ = 0;
};

// One tensor that was compared
struct Measure {
  std::string what;    // "attention output", "loss", "gradient": proofs of a kind share a line of the table
  std::string where;   // "block 3", or the name of a parameter
  double difference;   // relative
  double largest;      // absolute
  double allowed;      // the largest allowed `difference`
  double naive = NAN;  // naive's own difference, if it was measured
  bool ok() const { return difference <= allowed; }  // false for NaN
  double ratio() const { return difference / naive; }
};

struct Proof {
  std::string name;      // as --only takes it
  std::string compared;  // "flash and naive, both in fp32"
  int64_t tokens = 0;
  std::vector<Measure> measures = {};
  std::string reason = {};   // how much is allowed, and why
  std::string skipped = {};  // why it was skipped; then there are no measures
  std::string summary = {};  // one line, if there is more to say than the table shows
  double seconds = 0;        // how long it took
  bool judged = true;

  Verdict verdict() const;
  // For each kind, in order: the measure that is closest to what is allowed, or furthest above it
  std::vector<const Measure*> worst() const;
};

// The lines of the table, without a newline at the end
std::string proof_table(const std::vector<Proof>& proofs);
// "flash agrees with naive: ...", or which proof failed and where
std::string verdict_line(const std::vector<Proof>& proofs);
bool all_hold(const std::vector<Proof>& proofs);
// What is not finite is null in the text.
nlohmann::ordered_json to_json(const std::vector<Proof>& proofs);

// What was proven, as lines for a person
struct ProofSubject {
  std::string model, device, data;
};
// The same as JSON: the file of --json
nlohmann::ordered_json to_json(const ProofSubject& of, const std::vector<Proof>& proofs);
// The page of --html, made from that JSON; it needs no network
std::string prove_page(const nlohmann::ordered_json& json);
const char* prove_page_template();

}  // namespace tessera
