// The keys of the parts of a model: sections within sections, conditions on several keys, families.
#include <set>

#include "model/config.h"
#include "model/formats/folder.h"
#include "tests/says.h"
#include "tests/train/config/config_file.h"
#include "train/config/config_fields.h"
#include "train/config/print_config.h"

namespace tessera {
namespace {

using ModelKeys = ConfigFile;

constexpr const char* kLlama =
    "model:\n  norm: rmsnorm\n  positions: rope\n  mlp: swiglu\n  bias: none\n  heads: 4\n  channels: 64\n";

TEST_F(ModelKeys, SectionsNest) {
  const Config config = load(
      "model:\n"
      "  norm: rmsnorm\n"
      "  rope: {theta: 5e5, scaling: llama3, factor: 32, original_context: 8192}\n"
      "  positions: rope\n"
      "  mlp: swiglu\n"
      "  bias: none\n"
      "  kv_heads: 4\n",
      {"model.rope.factor=8", "model.rope.high_frequency=3"});
  const Rope& rope = config.model.rope;
  EXPECT_EQ(rope, (Rope{.theta = 5e5,
                        .scaling = RopeScaling::kLlama3,
                        .factor = 8,
                        .original_context = 8192,
                        .high_frequency = 3}));
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(load("model:\n  rope:\n"), load(""));
  EXPECT_EQ(load("model: {rope: {theta: 10000}}\n"), load(""));
}

TEST_F(ModelKeys, NestedSectionsArePrintedAndRead) {
  const Config config = load(kLlama, {"model.rope.scaling=yarn", "model.rope.factor=4"});
  const std::string yaml = print_config(config);
  EXPECT_NE(yaml.find("\n  rope:\n    # "), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("\n    scaling: yarn\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("\n    long_factors: none\n  dropout:\n    # "), std::string::npos) << yaml;
  EXPECT_EQ(load(yaml), config);
  EXPECT_NE(config_lines(config).find("model.rope.factor: 4\n"), std::string::npos);
}

TEST_F(ModelKeys, FaultsInNestedSectionsAreNamed) {
  EXPECT_TRUE(says(refusal("model:\n  rope:\n    theta: fast\n"),
                   {"run.yaml:3:12", "model.rope.theta", "1", "1000000000000", "\"fast\""}));
  EXPECT_TRUE(says(refusal("model:\n  rope:\n    thera: 5\n"),
                   {"run.yaml:3:5", "unknown", "\"model.rope.thera\"", "\"model.rope.theta\""}));
  EXPECT_TRUE(says(refusal("model:\n  theta: 5\n"),
                   {"run.yaml:2:3", "unknown", "\"model.theta\"", "\"model.rope.theta\""}));
  EXPECT_TRUE(says(refusal("model:\n  rope_theta: 5\n"),
                   {"run.yaml:2:3", "unknown", "\"model.rope_theta\"", "\"model.rope.theta\""}));
  EXPECT_TRUE(
      says(refusal("rope:\n  theta: 5\n"), {"run.yaml:1:1", "unknown", "\"rope\"", "\"model.rope\""}));
  EXPECT_TRUE(says(refusal("model:\n  roqe:\n    theta: 5\n"),
                   {"run.yaml:2:3", "unknown", "\"model.roqe\"", "\"model.rope\""}));
  EXPECT_TRUE(
      says(refusal("model:\n  rope: 5\n"), {"run.yaml:2:9", "model.rope", "section", "model.rope.theta"}));
  EXPECT_TRUE(says(refusal("model:\n  rope: {theta: 5, theta: 6}\n"),
                   {"run.yaml:2:20", "\"model.rope.theta\"", "twice", "run.yaml:2:10"}));
  EXPECT_TRUE(says(refusal("model:\n  rope: {}\n  rope: {}\n"),
                   {"run.yaml:3:3", "\"model.rope\"", "twice", "run.yaml:2:3"}));
  const std::string nested =
      "\"model:\" and, indented below it, \"rope:\" and, indented below it, \"theta: ...\"";
  EXPECT_TRUE(
      says(refusal("model.rope.theta: 5\n"), {"run.yaml:1:1", "in a file", "\"model.rope.theta\"", nested}));
  EXPECT_TRUE(says(refusal("model:\n  rope.theta: 5\n"),
                   {"run.yaml:2:3", "in a file", "\"model.rope.theta\"", nested}));
  EXPECT_TRUE(says(refusal("model.rope: {theta: 5}\n"),
                   {"run.yaml:1:1", "\"model.rope\"", "\"model:\"", "\"rope:\""}));
  EXPECT_TRUE(says(refused_override("model.rope=5"),
                   {"--set model.rope=5", "model.rope", "section", "model.rope.theta"}));
  EXPECT_TRUE(says(refused_override("rope.theta=5"),
                   {"--set rope.theta=5", "unknown", "\"rope.theta\"", "\"model.rope.theta\""}));
}

TEST_F(ModelKeys, AutoFollowsHeadsAndChannels) {
  const Config config = load(kLlama);
  EXPECT_EQ(config.model.kv_heads, 0);
  const ModelConfig model = config.model.resolved();
  EXPECT_EQ(model.kv_heads, 4);
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.mlp_width, 256);
  const ModelConfig set =
      load(kLlama, {"model.kv_heads=2", "model.head_dim=24", "model.mlp_width=80"}).model.resolved();
  EXPECT_EQ(set.kv_heads, 2);
  EXPECT_EQ(set.head_dim, 24);
  EXPECT_EQ(set.mlp_width, 80);
  // Only an auto head dimension needs heads that divide the channels.
  EXPECT_EQ(load(kLlama, {"model.heads=6", "model.head_dim=24"}).model.resolved().attention_width(), 144);
  EXPECT_EQ(Config::Model(model), config.model);
  EXPECT_EQ(Config::Model(set).resolved(), set);
}

TEST_F(ModelKeys, EveryKeyOfAModelIsAKey) {
  std::set<std::string> fields, members;
  Config config;
  for_each_field(config, [&](std::string_view key, const auto&...) { fields.emplace(key); });
  for_each_model_key(config.model, [&](const char* key, const auto&) { members.emplace(key); });
  for (const std::string& key : members) EXPECT_TRUE(fields.contains(key)) << key;
  std::set<std::string> others{"model.preset", "model.attention", "model.position_extension"};
  for_each_dropout_key(config.model.dropout, [&](const char* key, const auto&) { others.emplace(key); });
  for (const std::string& key : fields) {
    const bool is_of_model = key.starts_with("model.") && !others.contains(key);
    EXPECT_EQ(members.contains(key), is_of_model) << key;
  }
}

TEST_F(ModelKeys, OfLongrope) {
  const std::string eight = "[1, 1, 1.5, 2, 2, 2, 3e0, 4]";
  const Config config = load(std::string(kLlama) + "  context: 64\n  rope:\n    scaling: longrope\n" +
                                 "    original_context: 16\n    short_factors: " + eight + "\n",
                             {"model.rope.long_factors=1,1,1,1,2,2,2,5.25"});
  const Rope& rope = config.model.rope;
  EXPECT_EQ(rope.short_factors, (std::vector<double>{1, 1, 1.5, 2, 2, 2, 3, 4}));
  EXPECT_EQ(rope.long_factors, (std::vector<double>{1, 1, 1, 1, 2, 2, 2, 5.25}));
  EXPECT_NE(config_lines(config).find("model.rope.short_factors: [1, 1, 1.5, 2, 2, 2, 3, 4]\n"),
            std::string::npos);
}

// One value for the section, or its keys; on the command line the last one wins.
TEST_F(ModelKeys, OfDropout) {
  const auto dropout = [&](const std::string& yaml, const std::vector<std::string>& overrides = {}) {
    return load(yaml, overrides).model.dropout;
  };
  EXPECT_EQ(dropout(""), DropoutConfig{});
  EXPECT_EQ(dropout("model: {dropout: 0.1}\n"), (DropoutConfig{0.1, 0.1, 0.1}));
  EXPECT_EQ(dropout("model:\n  dropout: {embedding: 0.1, residual: 0.2, attention: 0}\n"),
            (DropoutConfig{.embedding = 0.1, .residual = 0.2}));
  EXPECT_EQ(dropout("model:\n  dropout:\n"), DropoutConfig{});
  EXPECT_EQ(dropout("", {"model.dropout=0.1", "model.dropout.attention=0"}),
            (DropoutConfig{.embedding = 0.1, .residual = 0.1}));
  EXPECT_EQ(dropout("model: {dropout: 0.1}\n", {"model.dropout.residual=0.5", "model.dropout=0.25"}),
            (DropoutConfig{0.25, 0.25, 0.25}));
  EXPECT_EQ(dropout("model: {preset: llama3.2_1b, dropout: 0.1}\ntrain: {tokens_per_step: 131072}\n"),
            (DropoutConfig{0.1, 0.1, 0.1}));  // no family has all three: it is no part of the model

  const auto finds = [](const std::string& message, const char* where, const char* found) {
    return says(message, {where, "model.dropout.embedding", "at least 0", "below 1", found});
  };
  EXPECT_TRUE(finds(refused_override("model.dropout=1"), "--set model.dropout=1", "1"));
  EXPECT_TRUE(finds(refused_override("model.dropout=-0.1"), "--set model.dropout=-0.1", "-0.1"));
  EXPECT_TRUE(finds(refused_override("model.dropout="), "--set model.dropout=", "text \"\""));
  EXPECT_TRUE(finds(refusal("model:\n  dropout: some\n"), "run.yaml:2:12", "\"some\""));
  EXPECT_TRUE(says(refused_override("model.dropout.attention=0.001"),
                   {"--set model.dropout.attention=0.001", "model.dropout.attention", "1/256", "0.001", "0",
                    "0", "none", "0.00390625", "0.99609375"}));
  EXPECT_NE(refused_override("model.dropout.attention=0.9999").find("0.9999 would be 1"), std::string::npos);
  EXPECT_TRUE(says(refusal("model:\n  dropout: [0.1]\n"),
                   {"run.yaml:2:12", "model.dropout", "section", "model.dropout.embedding",
                    "model.dropout.residual", "model.dropout.attention", "all", "list"}));
  EXPECT_EQ(refusal("model:\n  dropout:\n    branches: 0.1\n"),
            "run.yaml:3:5: unknown key \"model.dropout.branches\"; known: model.dropout.embedding, "
            "model.dropout.residual, model.dropout.attention");
  EXPECT_TRUE(says(refused_override("model.dropuot=0.1"),
                   {"--set model.dropuot=0.1", "unknown", "\"model.dropuot\"", "\"model.dropout\""}));
}

TEST_F(ModelKeys, OfAttention) {
  const auto with = [&](const std::vector<std::string>& overrides) { return refusal(kLlama, overrides); };
  EXPECT_TRUE(says(with({"model.kv_heads=3"}), {"--set model.kv_heads=3", "model.kv_heads", "3",
                                                "model.heads", "4", "(run.yaml:6:10)", "2", "4"}));
  EXPECT_TRUE(says(with({"model.kv_heads=8"}), {"--set model.kv_heads=8", "model.kv_heads", "8",
                                                "model.heads", "4", "(run.yaml:6:10)", "4"}));
  EXPECT_TRUE(
      says(with({"model.kv_heads=0"}), {"--set model.kv_heads=0", "model.kv_heads", "auto", "1", "0"}));
  EXPECT_TRUE(says(with({"model.head_dim=12"}),
                   {"--set model.head_dim=12", "model.head_dim", "auto", "8", "8", "12"}));
  EXPECT_TRUE(says(with({"model.heads=6"}), {"--set model.heads=6", "model.heads", "6", "model.channels",
                                             "64", "(run.yaml:7:13)", "4", "8", "model.head_dim"}));
  EXPECT_TRUE(says(with({"model.heads=64"}),
                   {"--set model.heads=64", "model.heads", "64", "heads of 1", "model.channels", "64",
                    "(run.yaml:7:13)", "model.head_dim", "model.positions=learned"}));
  EXPECT_TRUE(says(with({"model.heads=1000000", "model.head_dim=65536"}),
                   {"--set model.head_dim=65536", "model.head_dim", "65536", "4000000", "model.heads",
                    "1000000", "--set model.heads=1000000"}));
}

TEST_F(ModelKeys, OfRotaryPositions) {
  const auto with = [&](const std::vector<std::string>& overrides) { return refusal(kLlama, overrides); };
  EXPECT_TRUE(says(refusal("model:\n  rope:\n    theta: 5e5\n"),
                   {"run.yaml:3:12", "model.rope.theta", "500000", "model.positions", "learned", "(default)",
                    "model.positions=rope"}));
  EXPECT_TRUE(
      says(refusal("model:\n  qk_norm: true\n"), {"run.yaml:2:12", "model.qk_norm", "true", "model.positions",
                                                  "learned", "(default)", "model.positions=rope"}));
  EXPECT_TRUE(says(with({"model.position_extension=repeat"}),
                   {"--set model.position_extension=repeat", "model.position_extension", "repeat",
                    "model.positions", "rope", "(run.yaml:3:14)", "model.context"}));
  EXPECT_TRUE(says(with({"model.rope.share=1.5"}),
                   {"--set model.rope.share=1.5", "model.rope.share", "above 0", "at most 1", "1.5"}));
  EXPECT_TRUE(says(with({"model.rope.share=0.2"}),  // of heads of 16
                   {"--set model.rope.share=0.2", "model.rope.share", "3.2 channels",
                    "an even number of at least 2", "model.head_dim"}));
  EXPECT_TRUE(says(refusal("model:\n  rope:\n    share: 0.5\n"),
                   {"run.yaml:3:12", "model.rope.share", "0.5", "model.positions", "learned", "(default)"}));
  EXPECT_TRUE(says(with({"model.rope.factor=8"}),
                   {"--set model.rope.factor=8", "model.rope.factor", "8", "model.rope.scaling", "none",
                    "(default)", "linear", "llama3", "yarn"}));
  EXPECT_TRUE(says(with({"model.rope.scaling=linear", "model.rope.beta_fast=16"}),
                   {"--set model.rope.beta_fast=16", "model.rope.beta_fast", "16", "model.rope.scaling",
                    "linear", "--set model.rope.scaling=linear", "yarn"}));
  EXPECT_TRUE(says(with({"model.rope.scaling=llama3", "model.rope.factor=0.5"}),
                   {"--set model.rope.factor=0.5", "model.rope.factor", "1", "1000000", "0.5"}));
  EXPECT_TRUE(says(with({"model.rope.scaling=llama3", "model.rope.low_frequency=4"}),
                   {"--set model.rope.low_frequency=4", "model.rope.low_frequency", "4",
                    "model.rope.high_frequency", "4", "(default)"}));
  EXPECT_TRUE(says(with({"model.rope.scaling=yarn", "model.rope.beta_slow=32"}),
                   {"--set model.rope.beta_slow=32", "model.rope.beta_slow", "32", "model.rope.beta_fast",
                    "32", "(default)"}));
  EXPECT_TRUE(says(
      with({"model.rope.attention_factor=0"}),
      {"--set model.rope.attention_factor=0", "model.rope.attention_factor", "auto", "0", "1000000", "0"}));
  EXPECT_TRUE(says(with({"model.rope.scaling=yarn"}),
                   {"--set model.rope.scaling=yarn", "model.rope.scaling", "yarn", "model.rope.factor", "1",
                    "(default)", "--set model.rope.factor=4"}));
  EXPECT_EQ(load(kLlama, {"model.rope.scaling=yarn", "model.rope.factor=1"}).model.rope.factor, 1);
  EXPECT_TRUE(says(with({"model.rope.scaling=longrope", "model.rope.short_factors=[1,1]"}),
                   {"model.rope.short_factors", "has 2 numbers", "8 pairs", "model.rope.scaling longrope",
                    "a list of 8", "train.init_from"}));
  EXPECT_TRUE(says(with({"model.rope.long_factors=[1,2]"}),
                   {"model.rope.long_factors [1, 2]", "has no effect with", "model.rope.scaling none"}));
  for (const char* wrong : {"[1,0]", "[1,two]", "[]", "{1: 2}", "1,,2", "[1,-3]", "7e6"})
    EXPECT_TRUE(says(with({std::string("model.rope.long_factors=") + wrong}),
                     {"model.rope.long_factors must be none, or a list of numbers above 0", "found"}))
        << wrong;
  EXPECT_TRUE(
      says(with({"model.rope.scaling=yran"}), {"--set model.rope.scaling=yran", "model.rope.scaling", "none",
                                               "linear", "llama3", "yarn", "\"yran\"", "yarn"}));
}

TEST_F(ModelKeys, AModelOfNoFamilyIsRefusedAtTheKeyThatWasSetLast) {
  const auto expect = [&](const std::string& yaml, const std::vector<std::string>& overrides,
                          const std::string& where, const std::string& setting) {
    const std::string found = refusal(yaml, overrides);
    EXPECT_EQ(found.substr(0, where.size()), where) << found;
    EXPECT_NE(found.find(setting), std::string::npos) << found;
  };
  expect("model:\n  norm: rmsnorm\n", {}, "run.yaml:2:9: ", "model.norm=layernorm");
  expect("model:\n  kv_heads: 4\n", {}, "run.yaml:2:13: ", "model.kv_heads=12");
  expect("model:\n  head_dim: 96\n", {}, "run.yaml:2:13: ", "model.head_dim=64");
  expect(kLlama, {"model.norm=layernorm"}, "--set model.norm=layernorm: ", "model.norm=rmsnorm");
  expect(kLlama, {"model.scale_attention=false"},
         "--set model.scale_attention=false: ", "model.scale_attention=true");
  expect(kLlama, {"model.mlp=relu"}, "--set model.mlp=relu: ", "model.mlp=swiglu");
}

// Transformers has no family for them: the run says so.
TEST_F(ModelKeys, PartsOfOurOwnFamilyLoadWithANotice) {
  EXPECT_TRUE(load(kLlama).notices.empty());
  for (const char* own : {"model.mlp=relu2", "model.rope.share=0.5", "model.logit_cap=15"}) {
    const Config config = load(kLlama, {own, "model.qk_norm=true"});
    ASSERT_EQ(config.notices.size(), 1u) << own;
    EXPECT_TRUE(says(config.notices[0], {"transformers", "model_type tessera"}));
  }
  EXPECT_TRUE(load("", {"model.mlp=relu2"}).notices.empty());  // a GPT-2
  EXPECT_TRUE(
      says(refusal("", {"model.logit_cap=15"}), {"--set model.logit_cap=15", "gpt2 has model.logit_cap=0"}));
  EXPECT_TRUE(says(refusal(kLlama, {"model.logit_cap=-1"}),
                   {"--set model.logit_cap=-1", "model.logit_cap", "at least 0", "-1"}));
}

// With all channels rotated its model is a Llama, whose layers have other names than the folder's.
TEST_F(ModelKeys, AdaptersOfAPhi3NeedAFolderOfALlama) {
  std::filesystem::create_directories(folder_ / "phi");
  const std::string from = "train.init_from=" + (folder_ / "phi").string();
  write("phi/config.json", R"({"model_type": "phi3"})");
  EXPECT_EQ(load("", {from}).model.mlp_width, 8192);
  EXPECT_TRUE(says(
      refusal("", {from, "train.lora.rank=2"}),
      {"--set train.lora.rank=2", "model_type llama", "phi", "model_type phi3", "./export", "--format hf"}));
  write("phi/config.json", R"({"model_type": "phi3", "partial_rotary_factor": 0.75})");
  EXPECT_EQ(load("", {from, "train.lora.rank=2"}).model.rope.share, 0.75);
}

TEST_F(ModelKeys, FamiliesLoad) {
  load(kLlama);
  load(kLlama, {"model.kv_heads=2", "model.tied=false"});
  load(kLlama, {"model.bias=qkv"});
  load(kLlama, {"model.qk_norm=true", "model.head_dim=32"});
  load("", {"model.mlp=relu", "model.tied=false"});
}

TEST_F(ModelKeys, WhatIsOffloaded) {
  const auto offload = [&](const std::string& words) {
    return load("", {"memory.offload=" + words}).memory.offload;
  };
  EXPECT_EQ(load("").memory.offload, Offload{});
  EXPECT_EQ(offload("none"), Offload{});
  EXPECT_EQ(offload("auto"), std::nullopt);
  EXPECT_EQ(offload("optimizer"), Offload{.optimizer = true});
  EXPECT_EQ(offload("activations"), Offload{.activations = true});
  EXPECT_EQ(offload("gradients"), Offload{.gradients = true});
  EXPECT_EQ(offload("activations+optimizer"), (Offload{.optimizer = true, .activations = true}));
  EXPECT_NE(print_config(load("", {"memory.offload=activations+optimizer"}))
                .find("\n  offload: optimizer+activations\n"),
            std::string::npos);
  EXPECT_TRUE(says(refused_override("memory.offload=activation"),
                   {"memory.offload", "auto", "none", "optimizer", "activations", "\"activation\""}));
  EXPECT_TRUE(says(refused_override("memory.offload=optimizer+none"), {"memory.offload", "\"none\""}));
}

TEST_F(ModelKeys, ClippedHeadsHaveWeightsThatDecideTheirScores) {
  EXPECT_EQ(load("", {}).optimizer.qk_clip, 0);
  EXPECT_EQ(load("", {"optimizer.qk_clip=100"}).optimizer.qk_clip, 100);
  EXPECT_EQ(load("", {"optimizer.qk_clip=100", "train.freeze=embeddings"}).optimizer.qk_clip, 100);
  const auto refused = [&](std::vector<std::string> keys, std::string_view yaml = "") {
    keys.emplace_back("optimizer.qk_clip=100");
    return refusal(yaml, keys);
  };
  EXPECT_TRUE(says(refused({"model.qk_norm=true"}, kLlama),
                   {"optimizer.qk_clip", "model.qk_norm", "optimizer.qk_clip=0"}));
  EXPECT_TRUE(says(refused({"model.preset=gemma2_2b"}),
                   {"optimizer.qk_clip", "model.attention_cap", "optimizer.qk_clip=0"}));
  EXPECT_TRUE(says(refused({"train.freeze=attention"}),
                   {"optimizer.qk_clip", "train.freeze", "optimizer.qk_clip=0"}));
  EXPECT_TRUE(says(refusal("", {"optimizer.qk_clip=-1"}), {"optimizer.qk_clip", "-1"}));
}

TEST_F(ModelKeys, WhatTheBackwardRecomputes) {
  const auto keep = [&](const std::string& words, std::string_view yaml = kLlama) {
    return load(yaml, {"train.recompute=" + words}).train.recompute;
  };
  EXPECT_EQ(keep("none"), Keep{});
  EXPECT_EQ(keep("auto"), std::nullopt);
  EXPECT_EQ(keep("linear"), kKeepAttention);
  EXPECT_EQ(keep("norms+activation"), (Keep{Recomputed::kNorms, Recomputed::kActivation}));
  EXPECT_EQ(keep("mlp+norms", ""), (Keep{Recomputed::kMlp, Recomputed::kNorms}));
  EXPECT_NE(print_config(load(kLlama, {"train.recompute=activation+norms"}))
                .find("\n  recompute: norms+activation\n"),
            std::string::npos);
  const auto refused = [&](const std::string& words) {
    return refused_override("train.recompute=" + words).substr(std::string("--set train.recompute=").size());
  };
  EXPECT_TRUE(
      says(refused("activation"), {"train.recompute activation", "model.mlp", "gelu", "(default)", "mlp"}));
  EXPECT_TRUE(says(refused("norm"), {"train.recompute", "none", "norms", "attention", "activation", "mlp",
                                     "block", "\"norm\"", "norms"}));
  EXPECT_TRUE(
      says(refused("norms+mpl+block"), {"norms+mpl+block", "train.recompute", "none", "mlp", "\"mpl\""}));
  EXPECT_TRUE(says(refused("norms+auto"), {"train.recompute", "\"auto\"", "\"norms+auto\""}));
  EXPECT_TRUE(says(refused("norms+none"), {"norms+none", "train.recompute", "\"none\"", "\"norms+none\""}));
  EXPECT_TRUE(says(refused("norms+mlp+norms"),
                   {"norms+mlp+norms", "train.recompute", "twice", "\"norms+mlp+norms\""}));
  for (const char* list : {"norms,mlp", "[norms, mlp]", "norms mlp"})
    EXPECT_TRUE(says(refused(list), {"plus", "norms+attention"})) << refused(list);
  EXPECT_NE(refused_override("train.lora.parts=q_proj,v_proj").find("attention+mlp"), std::string::npos);
  EXPECT_NE(refused_override("train.lora.base=int4").find("nf4_double"), std::string::npos);
  for (const char* alone : {"train.lora.base_parts=blocks", "train.lora.base_parts=experts"})
    EXPECT_NE(refused_override(alone).find("train.lora.base"), std::string::npos) << refused_override(alone);
  for (const char* bad : {"norms+", "+norms", "norms++mlp", "\"\"", "[norms]", "norms, mlp"})
    EXPECT_NE(refused(bad), "accepted") << bad;
}

TEST_F(ModelKeys, WhatIsRecomputedBlockByBlock) {
  const auto loaded = [&](const std::string& value, const std::string& layers) {
    return load(kLlama, {"train.recompute=" + value, "model.layers=" + layers});
  };
  const auto round_trip = [&](const std::string& value, const std::string& layers) {
    const Config config = loaded(value, layers);
    EXPECT_NE(print_config(config).find("\n  recompute: " + value + "\n"), std::string::npos) << value;
    return *config.train.recompute;
  };
  const ByBlock<Keep> keep = round_trip("linear*20,none", "32");
  EXPECT_EQ(keep, ByBlock<Keep>({{kKeepAttention, 20}, {kKeepAll}}));
  EXPECT_EQ(keep.at(19), kKeepAttention);
  EXPECT_EQ(keep.at(20), kKeepAll);
  round_trip("norms+mlp*1,block*2,none", "3");
  round_trip("norms+mlp*1,block*2", "3");
  EXPECT_EQ(*loaded("mlp*2,mlp", "3").train.recompute, kKeepAllButMlp);
  EXPECT_EQ(text_of(*loaded("mlp+norms*2,mlp*1,mlp*1,none", "9").train.recompute), "norms+mlp*2,mlp*2,none");
  const auto refused = [&](const std::string& value) {
    return refusal(kLlama, {"train.recompute=" + value, "model.layers=4"});
  };
  EXPECT_TRUE(says(refused("linear*20,none"),
                   {"train.recompute", "linear*20,none", "20 blocks", "model.layers", "4"}));
  EXPECT_TRUE(says(refused("linear*1,none*5"), {"train.recompute", "6 blocks", "model.layers"}));
  EXPECT_TRUE(says(refused("linear*1"), {"train.recompute", "1 block", "model.layers", "4", "last entry"}));
  EXPECT_TRUE(says(refused("linear,none"), {"number of blocks", "\"linear,none\"", "plus"}));
  EXPECT_TRUE(says(refused("auto*2,none"), {"\"auto\" alone", "\"auto*2,none\""}));
  EXPECT_TRUE(says(refused("linear*1,liner"), {"\"liner\"", "linear"}));
  for (const char* bad : {"linear*0,none", "linear*,none", "linear*x,none", "linear*-1,none",
                          "linear*1.5,none", "linear*99999999999999999999,none", "linear*1*2,none"})
    EXPECT_TRUE(says(refused(bad), {"train.recompute", "number of blocks", bad})) << bad;
  for (const char* bad :
       {"linear*1,", ",none", "*2,none", "linear*1,,none", "linear*1, none", "[linear*1, none]"})
    EXPECT_NE(refused(bad), "accepted") << bad;
  EXPECT_TRUE(says(refused_override("train.recompute=none*1,activation"), {"activation", "model.mlp"}));
}

TEST_F(ModelKeys, WhichBlocksEachBlockSees) {
  const auto loaded = [&](const std::string& value, std::vector<std::string> more = {}) {
    more.push_back("model.sparse=" + value);
    return load("", more);
  };
  for (const char* value : {"full", "window:8+global:1", "window:8+global:1+random:2+seed:3*2,full",
                            "full,window:4+stride:8+block:256", "chosen:8+block:512"}) {
    const Config config = loaded(value);
    EXPECT_NE(print_config(config).find("\n  sparse: " + std::string(value) + "\n"), std::string::npos);
    EXPECT_EQ(config.model.sparse, read_sparse(value));
  }
  EXPECT_EQ(loaded("[window:4*2, full]").model.sparse, read_sparse("window:4*2,full"));
  const auto refused = [&](const std::string& value, std::vector<std::string> more = {}) {
    more.push_back("model.sparse=" + value);
    return refusal("", more);
  };
  EXPECT_TRUE(says(refused("window:8+globl:1"), {"model.sparse", "window:N", "globl:1"}));
  EXPECT_TRUE(says(refused("window:4*12,full"), {"model.sparse", "13 blocks", "model.layers", "12"}));
  EXPECT_TRUE(
      says(refused("window:8", {"model.attention=cudnn"}), {"model.sparse", "model.attention", "cudnn"}));
  EXPECT_EQ(loaded("window:8", {"parallel.context=2"}).model.sparse.at(0).window, 8);
  EXPECT_TRUE(
      says(refused("window:8", {"model.dropout.attention=0.1"}), {"model.dropout.attention", "naive"}));
  EXPECT_EQ(loaded("window:8", {"model.heads=3", "model.head_dim=256"}).model.head_dim, 256);
  EXPECT_EQ(loaded("window:8", {"model.dropout.attention=0.1", "device=cpu"}).model.sparse.at(0).window, 8);
  EXPECT_EQ(loaded("chosen:8", {"parallel.context=2"}).model.sparse.at(0).chosen, 8);
  EXPECT_TRUE(says(refused("chosen:8+window:2"), {"model.sparse", "chosen:N", "only block:N"}));
  EXPECT_TRUE(says(refused("chosen:33"), {"model.sparse", "chosen:33 is out of range, expected 1 to 32"}));
  EXPECT_TRUE(says(refused("chosen:8", {"model.dropout.attention=0.1"}), {"model.sparse", "dropout"}));
  EXPECT_TRUE(says(refused("chosen:8", {"train.inside_every=10"}), {"model.sparse", "train.inside_every"}));
  EXPECT_TRUE(
      says(refused("full,chosen:8", {"optimizer.qk_clip=50"}), {"model.sparse", "optimizer.qk_clip"}));
  const std::string qwen3 = kLlama + std::string("  qk_norm: true\n");
  EXPECT_TRUE(says(refusal(qwen3, {"model.window=64", "model.sparse=full,window:2"}),
                   {"model.sparse", "block 1", "model.window"}));
}

TEST_F(ModelKeys, HowManyTokensEachBlockSees) {
  const std::string qwen3 = kLlama + std::string("  qk_norm: true\n");
  const auto round_trip = [&](const std::string& value) {
    const Config config = load(qwen3, {"model.window=" + value, "model.layers=12"});
    EXPECT_NE(print_config(config).find("\n  window: " + value + "\n"), std::string::npos) << value;
    return config.model.window;
  };
  EXPECT_EQ(round_trip("full"), Windows());
  EXPECT_EQ(round_trip("1024"), Windows(1024));
  EXPECT_EQ(round_trip("1024*5,full"), Windows({{1024, 5}, {Windows::kFull}}));
  EXPECT_EQ(round_trip("full*3,64"), Windows({{Windows::kFull, 3}, {64}}));
  EXPECT_EQ(load(qwen3, {"model.window=64,64*3"}).model.window, Windows(64));
  for (const char* list : {"[64*2, full]", "[64, 64, full]"})
    EXPECT_EQ(load(qwen3, {std::string("model.window=") + list, "model.layers=4"}).model.window,
              Windows({{64, 2}, {Windows::kFull}}))
        << list;
  const auto refused = [&](const std::string& value) {
    return refusal(qwen3, {"model.window=" + value, "model.layers=4"});
  };
  EXPECT_TRUE(says(refused("64*4,full"), {"model.window", "5 blocks", "model.layers", "4", "repeats"}));
  EXPECT_TRUE(says(refused("0"), {"model.window", "full", "at least 1", "found 0"}));
  for (const char* bad : {"-1", "none", "1.5", "99999999999", "64,", ",full", "64, full", "\"64\"", "", "[]",
                          "[64, [full]]", "[64, \"full\"]", "[\"\", 64]", "{64: full}"})
    EXPECT_TRUE(says(refused(bad), {"model.window", "full"})) << bad;
  for (const char* bad : {"64*0,full", "64*x,full", "64*2*2"})
    EXPECT_TRUE(says(refused(bad), {"model.window", "number of blocks", bad})) << bad;
  EXPECT_TRUE(says(refused("64*10000,full"), {"model.window", "10000 blocks"}));
  EXPECT_TRUE(says(refused_override("model.window=64"), {"model.window=full"}));  // GPT-2
  EXPECT_TRUE(says(refusal(qwen3, {"model.window=64,32"}), {"model.window=full"}));
  EXPECT_TRUE(says(refusal(qwen3, {"model.rope.local_theta=100"}),
                   {"model.rope.local_theta", "model.window", "full"}));
  const Config own = load(qwen3, {"model.window=64", "model.rope.local_theta=100"});
  EXPECT_EQ(own.model.rope.local_theta, 100);
  EXPECT_STREQ(family_of(own.model.resolved()), "tessera");
}

TEST_F(ModelKeys, WhoseActivationsAreOffloaded) {
  const auto loaded = [&](const std::string& value) {
    return load("", {"memory.offload=" + value, "model.layers=9"});
  };
  const Offload some = *loaded("weights+activations*7+optimizer").memory.offload;
  EXPECT_EQ(some, (Offload{.optimizer = true, .activations = true, .weights = true, .blocks = 7}));
  EXPECT_EQ(text_of(some), "optimizer+activations*7+weights");
  EXPECT_NE(print_config(loaded("activations*9")).find("\n  offload: activations*9\n"), std::string::npos);
  const auto refused = [&](const std::string& value) { return refused_override("memory.offload=" + value); };
  EXPECT_TRUE(
      says(refused("activations*999"), {"memory.offload", "activations*999", "999 blocks", "model.layers"}));
  EXPECT_TRUE(
      says(refused("optimizer+activations*0"), {"memory.offload", "number of blocks", "activations*0"}));
  EXPECT_TRUE(says(refused("activations*2+activations"), {"twice"}));
  for (const char* bad :
       {"optimizer*2", "activations*", "activations*2,none", "xactivations*2", "auto+activations*2"})
    EXPECT_NE(refused(bad), "accepted") << bad;
}

TEST_F(ModelKeys, WordsOfNumbers) {
  const auto chunk = [&](const std::string& value) {
    return load("", {"train.classifier_chunk=" + value}).train.classifier_chunk;
  };
  EXPECT_EQ(load("").train.classifier_chunk, kAutoChunk);
  EXPECT_EQ(chunk("auto"), kAutoChunk);
  EXPECT_EQ(chunk("all"), 0);
  EXPECT_EQ(chunk("4096"), 4096);
  const auto of_mlp = [&](const std::string& value) {
    return load("", {"train.mlp_chunk=" + value}).train.mlp_chunk;
  };
  EXPECT_EQ(load("").train.mlp_chunk, 0);
  EXPECT_EQ(of_mlp("auto"), kAutoChunk);
  EXPECT_EQ(of_mlp("0"), 0);
  EXPECT_EQ(of_mlp("4096"), 4096);
  for (const char* bad : {"-1", "all"})
    EXPECT_TRUE(says(refused_override(std::string("train.mlp_chunk=") + bad),
                     {"train.mlp_chunk", "auto", "at least 0", bad[0] == '-' ? "-1" : "\"all\""}));
  for (const char* bad : {"-1", "most"})
    EXPECT_TRUE(
        says(refused_override(std::string("train.classifier_chunk=") + bad),
             {"train.classifier_chunk", "auto, all", "at least 1", bad[0] == '-' ? "-1" : "\"most\""}));
  EXPECT_TRUE(
      says(refused_override("checkpoint.dtype=fp16"),
           {"--set checkpoint.dtype=fp16", "checkpoint.dtype", "fp32", "bf16", "\"fp16\"", "fp32", "bf16"}));
}

}  // namespace
}  // namespace tessera
