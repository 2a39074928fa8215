// The memory that ./generate needs: weights, cache and everything else. The plan runs the code without a
// device.
#pragma once

#include "kernels/base/ledger.h"
#include "train/memory/plan_target.h"
#include "train/session/decoder.h"

namespace tessera {

struct GeneratePlan {
  SessionShape shape;
  Decoder::Settings settings;
  MemoryLedger ledger;  // for the longest prompt, and a token after it
  int64_t cache_bytes;  // for all slots
  double token_bytes;   // the part of these for one token of a text
  std::string decode;   // Decoder::kernels_text()

  int64_t peak() const { return ledger.peak_bytes(); }
};

struct GenerateShape {
  ModelConfig model;
  Precision precision = Precision::kAuto;
  AttentionKind attention = AttentionKind::kFlash;
  int64_t slots = 1, context = 0, known = 0;  // see Decoder::Settings
  CacheDtype cache = CacheDtype::kAuto;
};
GeneratePlan plan_generate(const GenerateShape& shape, const DeviceTraits& device);

// Error: it needs more than the limit; the message says what would fit.
void check_fits(const GenerateShape& shape, const GeneratePlan& plan, const DeviceTraits& device,
                const MemoryLimit& limit);

// --plan: prints the plan and the longest context that fits. Returns 0 if the plan fits or no limit is known,
// else kExitDoesNotFit.
int print_generate_plan(const GenerateShape& shape, const PlanTarget& target);

}  // namespace tessera
