// Plans before runs: sizes, exact peaks of the configurations that ship, what fits, and what to change.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "train/config/load_config.h"
#include "train/memory/memory_report.h"
#include "train/memory/plan_advice.h"
#include "train/memory/plan_command.h"
#include "train/memory/plan_fit.h"
#include "train/session/fastest_shape.h"

namespace tessera {
namespace {

const DeviceTraits kHopper{.device = Device::kCuda, .arch = 90, .name = "H200"};
constexpr int64_t kGiB = int64_t{1} << 30;

Config shipped(const std::string& name, std::vector<std::string> overrides = {}) {
  return load_config(std::filesystem::path(TESSERA_SOURCE_DIR "/configs") / (name + ".yaml"), overrides);
}

int64_t tag_bytes(const RunPlan& plan, MemoryTag tag) {
  return plan.memory.ledger.at_peak()[static_cast<size_t>(tag)];
}

TEST(Sizes, AreReadInTheUnitsPeopleWrite) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"80GiB", 80 * kGiB},       {"80G", 80 * kGiB},   {"80 gib", 80 * kGiB}, {"80Gi", 80 * kGiB},
      {"141GB", 141'000'000'000}, {"1.5K", 1536},       {"2MiB", 2 << 20},     {"2MB", 2'000'000},
      {"1T", 1024 * kGiB},        {"1048576", 1 << 20}, {"4096B", 4096}};
  for (const auto& [text, bytes] : sizes) EXPECT_EQ(parse_bytes(text), bytes) << text;
}

TEST(Sizes, WhatIsNoSizeIsRefusedWithExamples) {
  for (const char* text : {"", "GiB", "80", "4096", "1048575", "eighty", "80GiBs", "80PB", "-5G", "0", "0.2",
                           "1e3G", "8,5G", "inf", "nan", "0x10", " 80G", "80  G", "99999999999T"}) {
    try {
      parse_bytes(text);
      ADD_FAILURE() << "\"" << text << "\" was taken for a size";
    } catch (const Error& error) {
      for (const char* part : {text, "80GiB", "141GB"})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(LargestThatFits, IsTheLastMultipleBeforeTheFirstThatDoesNot) {
  for (const int64_t limit : {0, 1, 127, 128, 129, 1000, 8191, 8192, 8193})
    for (const int64_t step : {1, 7, 128})
      for (const int64_t most : {1, 128, 1000, 5000, 100000}) {
        int tried = 0;
        const int64_t found = largest_that_fits(step, most, [&](int64_t n) {
          EXPECT_LE(n, most);
          EXPECT_EQ(n % step, 0);
          return ++tried, n <= limit;
        });
        EXPECT_EQ(found, std::min(limit, most) / step * step) << limit << " " << step << " " << most;
        EXPECT_LE(tried, 40);
      }
}

// Bytes a parameter: in bf16 weights, gradients and the lower bits of masters of 2, two moments of 4; in fp32
// all of 4, and nothing of masters.
TEST(Plan, OfTheShippedConfigurationsAddsUp) {
  for (const char* name : {"quickstart", "gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"})
    for (const DeviceTraits& device : {kHopper, DeviceTraits{}}) {
      SCOPED_TRACE(std::string(name) + " on " + device.name);
      const bool cuda = device.device == Device::kCuda;
      const Config config = shipped(name, {"train.micro_batch=2"});
      const RunPlan plan = plan_run(config, device, given_memory(device.device, 1000 * kGiB));
      int64_t sum = 0;
      for (const int64_t bytes : plan.memory.ledger.at_peak()) sum += bytes;
      EXPECT_EQ(sum, plan.peak());
      const ModelConfig& model = plan.shape.model;
      const auto stored = static_cast<double>(model.parameters() +
                                              (model.padded_vocab() - model.vocab_size) * model.channels);
      const auto near = [&](MemoryTag tag, int bytes) {  // a tensor is rounded up to Arena::kAlignment
        EXPECT_NEAR(static_cast<double>(tag_bytes(plan, tag)) / (bytes * stored), 1, 0.01) << name_of(tag);
      };
      near(MemoryTag::kWeights, cuda ? 2 : 4);
      near(MemoryTag::kGradients, cuda ? 2 : 4);
      near(MemoryTag::kOptimizer, cuda ? 10 : 8);
      EXPECT_GE(tag_bytes(plan, MemoryTag::kData), 12 * plan.shape.tokens_per_step());
      EXPECT_EQ(plan.memory.peak_stage, "a training step");
      EXPECT_FALSE(plan.memory.ledger.peak_name().empty());
      EXPECT_TRUE(plan.fits());
    }
}

TEST(Plan, Bf16MomentsTakeHalf) {
  for (const DeviceTraits& device : {kHopper, DeviceTraits{}}) {
    const auto moments = [&](const char* dtype) {
      const auto config =
          shipped("gpt2_small", {"train.micro_batch=2", fmt::format("optimizer.moments={}", dtype)});
      return plan_run(config, device, {});
    };
    const RunPlan wide = moments("fp32"), narrow = moments("bf16");
    const auto parameters = static_cast<double>(wide.shape.model.parameters());
    EXPECT_NEAR(static_cast<double>(wide.peak() - narrow.peak()) / parameters, 4, 0.01) << device.name;
    EXPECT_EQ(wide.peak() - narrow.peak(),
              tag_bytes(wide, MemoryTag::kOptimizer) - tag_bytes(narrow, MemoryTag::kOptimizer));
  }
}

TEST(Plan, FitsUpToTheLastByte) {
  const Config config = shipped("gpt2_small", {"train.micro_batch=2"});
  const int64_t peak = plan_run(config, kHopper, {}).peak();
  EXPECT_TRUE(plan_run(config, kHopper, {}).fits()) << "no limit is known";
  const int64_t total = peak + kAllowanceCuda;
  EXPECT_TRUE(plan_run(config, kHopper, given_memory(Device::kCuda, total)).fits());
  EXPECT_FALSE(plan_run(config, kHopper, given_memory(Device::kCuda, total - 1)).fits());
  EXPECT_EQ(plan_run(config, kHopper, given_memory(Device::kCuda, total - 1)).spare(), -1);
  EXPECT_TRUE(plan_run(config, {}, given_memory(Device::kCpu, 100 * kGiB)).limit.not_ours == 0);
}

// The longer and the more, the larger: what bisection rests on.
TEST(Plan, NeverShrinksAsTheRunGrows) {
  for (const char* attention : {"naive", "flash"})
    for (const DeviceTraits& device : {kHopper, DeviceTraits{}}) {
      const Config config =
          shipped("quickstart", {"train.micro_batch=1", "model.attention=" + std::string(attention)});
      int64_t context = 0, batch = 0;
      for (int64_t n = 1; n <= 40; ++n) {
        const int64_t longer = plan_run(with_context({config, {}}, 128 * n).config, device, {}).peak();
        const int64_t more = plan_run(with_micro_batch({config, {}}, n).config, device, {}).peak();
        EXPECT_GT(longer, context) << attention << " context " << 128 * n;
        EXPECT_GT(more, batch) << attention << " batch " << n;
        context = longer, batch = more;
      }
    }
}

// A sample is as long as sampling.* makes it, not as long as the context.
TEST(Plan, OfASampleIsAsLongAsTheSample) {
  const std::vector<std::string> overrides{"model.context=16384", "train.sequence_length=128",
                                           "model.attention=naive", "train.micro_batch=1"};
  const Config config = shipped("gpt2_small", overrides);
  const auto cache = [](const Config& of) {
    const RunPlan plan = plan_run(of, kHopper, {});
    EXPECT_LT(plan.peak(), 4 * kGiB);  // a prompt is read in chunks, whatever its length
    return plan.memory.ledger.peak_of_each()[static_cast<size_t>(MemoryTag::kCache)];
  };
  const int64_t token = int64_t{2} * 12 * 768 * 2;  // keys and values in 12 layers, in bf16
  const auto length = static_cast<int64_t>(config.sampling.prompt.size()) + config.sampling.tokens;
  EXPECT_EQ(cache(config), length * token + Arena::kAlignment);
  Config long_sample = config;
  long_sample.sampling.tokens = 16384;
  EXPECT_EQ(cache(long_sample), 16384 * token + Arena::kAlignment);
  Config none = config;
  none.sampling.every = 0;
  EXPECT_EQ(cache(none), 0);
}

TEST(Fit, OfTheContextIsTheLargest) {
  for (const char* attention : {"naive", "flash"})
    for (const char* micro_batch : {"auto", "4"}) {
      SCOPED_TRACE(std::string(attention) + " " + micro_batch);
      const std::vector<std::string> overrides{"model.attention=" + std::string(attention),
                                               "train.micro_batch=" + std::string(micro_batch)};
      const Config config = shipped("gpt2_small", overrides);
      const MemoryLimit limit = given_memory(Device::kCuda, 40 * kGiB);
      const Fit fit = fit_context(config, kHopper, limit);
      EXPECT_GT(fit.value, 1024);
      EXPECT_EQ(fit.value % kContextStep, 0);
      EXPECT_TRUE(fit.plan.fits());
      EXPECT_EQ(fit.plan.shape.sequence_length, fit.value);
      EXPECT_EQ(fit.plan.shape.micro_batch, std::max<int64_t>(config.train.micro_batch, 1));
      // The switches, read as a user would give them, are the plan that was found; a step more does not fit.
      std::vector<std::string> all = overrides;
      all.insert(all.end(), fit.change.switches.begin(), fit.change.switches.end());
      EXPECT_EQ(plan_run(shipped("gpt2_small", all), kHopper, limit).peak(), fit.plan.peak());
      for (int64_t more = 1; more <= 8; ++more) {
        Config beyond = fit.change.config;
        beyond.model.context = fit.value + more * kContextStep;
        beyond.train.tokens_per_step = beyond.model.context * fit.plan.shape.micro_batch;
        EXPECT_FALSE(plan_run(beyond, kHopper, limit).fits()) << more << " steps more";
      }
      EXPECT_NE(fit.beyond.find(std::to_string(fit.value + kContextStep)), std::string::npos) << fit.beyond;
    }
}

TEST(Fit, OfTheBatchIsTheLargestAndOneKeepsTheStep) {
  const Config config = shipped("gpt2_small");
  const MemoryLimit limit = given_memory(Device::kCuda, 80 * kGiB);
  const Fit fit = fit_batch(config, kHopper, limit);
  EXPECT_TRUE(fit.plan.fits());
  EXPECT_FALSE(plan_run(with_micro_batch({config, {}}, fit.value + 1).config, kHopper, limit).fits());
  EXPECT_NO_THROW(shipped("gpt2_small", fit.change.switches)) << "the switches are no configuration";
  ASSERT_TRUE(fit.same_step);
  EXPECT_EQ(fit.same_step->config.train.tokens_per_step, config.train.tokens_per_step);
  const int64_t kept = fit.same_step->config.train.micro_batch;
  EXPECT_LT(kept, fit.value);
  EXPECT_GT(2 * kept, fit.value) << "512 sequences are divided by every power of two";
}

TEST(Fit, SaysWhenNothingFitsAndWantsALimit) {
  const Fit fit = fit_batch(shipped("gpt2_xl"), kHopper, given_memory(Device::kCuda, 8 * kGiB));
  EXPECT_EQ(fit.value, 0);
  EXPECT_FALSE(fit.plan.fits());
  EXPECT_THROW(fit_batch(shipped("gpt2_xl"), kHopper, {}), Error);
  EXPECT_THROW(
      fit_context(shipped("gpt2_xl", {"model.heads=5"}), kHopper, given_memory(Device::kCuda, 80 * kGiB)),
      Error)
      << "no kernel serves a head dim of 320";
}

TEST(Advice, EveryLineIsARunWithThatMemory) {
  const std::vector<std::string> overrides{"model.attention=naive", "model.context=8192",
                                           "train.micro_batch=4"};
  const MemoryLimit limit = given_memory(Device::kCuda, 40 * kGiB);
  const Config config = shipped("gpt2_small", overrides);
  const RunPlan plan = plan_run(config, kHopper, limit);
  ASSERT_FALSE(plan.fits());
  const std::vector<Advice> found = advice(config, plan, false);
  std::string all;
  for (const Advice& a : found) {
    all += set_switches(a.switches) + "\n";
    std::vector<std::string> with = overrides;
    with.insert(with.end(), a.switches.begin(), a.switches.end());
    const RunPlan changed = plan_run(shipped("gpt2_small", with), kHopper, limit);
    EXPECT_EQ(changed.peak(), a.peak) << set_switches(a.switches);
    EXPECT_EQ(changed.fits(), a.fits) << set_switches(a.switches);
    EXPECT_LT(a.peak, plan.peak());
  }
  for (const char* part : {"train.micro_batch=1", "model.attention=flash", "train.sequence_length="})
    EXPECT_NE(all.find(part), std::string::npos) << all;
  const std::string text = refusal(config, plan, false);
  for (const char* part :
       {"does not fit", "attention 72.0 GiB", "more than", "--device-memory", "model.attention=flash"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  for (const Advice& a : advice(config, plan, true))  // a checkpoint's data comes in an order that T decides
    EXPECT_EQ(set_switches(a.switches).find("sequence_length"), std::string::npos);
}

TEST(Advice, IsAnMlpInChunksForLongSequences) {
  const std::vector<std::string> overrides{"train.sequence_length=131072", "train.tokens_per_step=131072",
                                           "train.micro_batch=1", "train.recompute=block"};
  const auto text_at = [&](int64_t gib, const std::string& chunk) {
    std::vector<std::string> all = overrides;
    all.push_back("train.mlp_chunk=" + chunk);
    const Config config = shipped("llama3.2_1b", all);
    const RunPlan plan = plan_run(config, kHopper, given_memory(Device::kCuda, gib * kGiB));
    EXPECT_FALSE(plan.fits());
    return advice_text(advice(config, plan, false));
  };
  const std::string whole = text_at(32, "0"), smallest = text_at(20, "2048"),
                    line = "s  --set train.mlp_chunk=";
  EXPECT_NE(whole.find(line + "16384\n"), std::string::npos) << whole;
  for (const int64_t chunk : kMlpChunks)
    EXPECT_EQ(smallest.find(fmt::format("{}{}\n", line, chunk)), std::string::npos) << smallest;
}

TEST(Advice, CombinesWhatIsNotEnoughAlone) {
  const Config config = shipped("gpt2_small", {"model.attention=naive", "train.micro_batch=64"});
  const RunPlan plan = plan_run(config, kHopper, given_memory(Device::kCuda, 3 * kGiB));
  const std::vector<Advice> found = advice(config, plan, false);
  const auto fits = std::find_if(found.begin(), found.end(), [](const Advice& a) { return a.fits; });
  ASSERT_NE(fits, found.end()) << advice_text(found);
  EXPECT_GT(fits->switches.size(), 1u) << advice_text(found);
}

TEST(Advice, IsBf16MomentsWhereNothingElseIsEnough) {
  const auto text_at = [&](int64_t bytes, std::vector<std::string> overrides = {}) {
    overrides.push_back("train.micro_batch=1");
    const Config config = shipped("gpt2_xl", overrides);
    return advice_text(advice(config, plan_run(config, kHopper, given_memory(Device::kCuda, bytes)), false));
  };
  const std::string switches = "optimizer.moments=bf16", text = text_at(19 * kGiB);
  EXPECT_NE(text.find(switches), std::string::npos) << text;
  EXPECT_LT(text.find(" fits "), text.find(switches)) << text;
  EXPECT_EQ(text.find("model.layers="), std::string::npos) << text;
  EXPECT_EQ(text_at(28 * kGiB).find(switches), std::string::npos) << "other switches are enough";
  EXPECT_EQ(text_at(12 * kGiB).find(switches), std::string::npos) << "it is not enough";
  EXPECT_EQ(text_at(16 * kGiB, {switches}).find(switches), std::string::npos) << "it is what the run has";
}

TEST(Advice, IsFewerLayersWhereTheModelIsTooLarge) {
  const Config config = shipped("gpt2_xl", {"train.micro_batch=1"});
  const auto text_at = [&](int64_t bytes, int64_t of_host = MemoryLimit::kUnknownPinned) {
    MemoryLimit limit = given_memory(Device::kCuda, bytes);
    limit.pinned = of_host;
    return advice_text(advice(config, plan_run(config, kHopper, limit), false));
  };
  const std::string offloads = text_at(12 * kGiB), all = text_at(4 * kGiB), text = text_at(4 * kGiB, kGiB);
  EXPECT_NE(offloads.find("memory.offload=optimizer"), std::string::npos) << offloads;
  EXPECT_NE(all.find("memory.offload=optimizer+activations+weights+gradients"), std::string::npos) << all;
  for (const std::string& fitting : {offloads, all})
    EXPECT_EQ(fitting.find("model.layers="), std::string::npos) << fitting;
  EXPECT_NE(text.find("model.layers="), std::string::npos) << text;
  EXPECT_NE(text.find(" fits "), std::string::npos) << text;
  const RunPlan hopeless = plan_run(config, kHopper, given_memory(Device::kCuda, kGiB));
  const std::string none = advice_text(advice(config, hopeless, false));
  EXPECT_NE(none.find("model is too large"), std::string::npos) << none;
}

TEST(Advice, IsForAHostThatIsTooSmall) {
  const Config config = shipped("gpt2_xl", {"train.micro_batch=1", "memory.offload=optimizer"});
  MemoryLimit limit = given_memory(Device::kCuda, 80 * kGiB);
  limit.pinned = plan_run(config, kHopper, limit).memory.host_bytes;
  EXPECT_TRUE(plan_run(config, kHopper, limit).fits());
  --limit.pinned;
  const RunPlan plan = plan_run(config, kHopper, limit);
  EXPECT_TRUE(plan.fits_device());
  EXPECT_FALSE(plan.fits());
  const std::string text = refusal(config, plan, false);
  for (const char* part :
       {"memory.offload=optimizer", "14.5 GiB", "1 B more", "memory.offload=none", " fits "})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  for (const Advice& a : advice(config, plan, false)) EXPECT_TRUE(a.fits) << set_switches(a.switches);
}

TEST(Advice, IsQuotedForAShell) {
  EXPECT_EQ(set_switches({"train.micro_batch=1", "data.train=a b*.bin", "sampling.prompt=it's"}),
            "--set train.micro_batch=1 --set 'data.train=a b*.bin' --set 'sampling.prompt=it'\\''s'");
}

// A micro-batch of auto is what the given memory holds, not what this machine's does.
TEST(AutoMicroBatch, FollowsTheMemoryThatIsPlannedFor) {
  const Config config = shipped("gpt2_small");
  const RunPlan small = plan_run(config, kHopper, given_memory(Device::kCuda, 16 * kGiB)),
                large = plan_run(config, kHopper, given_memory(Device::kCuda, 80 * kGiB)),
                tiny = plan_run(config, kHopper, given_memory(Device::kCuda, 4 * kGiB));
  for (const RunPlan* plan : {&small, &large, &tiny}) EXPECT_TRUE(plan->fits());
  EXPECT_LT(tiny.shape.micro_batch, small.shape.micro_batch);
  EXPECT_LT(small.shape.micro_batch, large.shape.micro_batch);
}

// On the CPU the system counts pages that were used, and a part of the arena may never be.
TEST(MemoryTable, HasNothingNegative) {
  MemoryLedger ledger;
  ledger.enter(MemoryTag::kWeights, "weights", 1000);
  const std::string none = memory_table(ledger, 0, {}), huge = memory_table(ledger, int64_t{1} << 50, {});
  EXPECT_NE(none.find("not in the ledger"), std::string::npos) << none;
  EXPECT_NE(huge.find("never used"), std::string::npos) << huge;
  for (const std::string& table : {none, huge}) EXPECT_EQ(table.find(" -"), std::string::npos) << table;
}

}  // namespace
}  // namespace tessera
