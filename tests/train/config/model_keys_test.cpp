// The keys of the parts of a model: sections within sections, conditions on several keys, families.
#include <set>

#include "model/config.h"
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
  EXPECT_NE(yaml.find("\n    attention_factor: auto\n  dropout:\n    # "), std::string::npos) << yaml;
  EXPECT_EQ(load(yaml), config);
  EXPECT_NE(config_lines(config).find("model.rope.factor: 4\n"), std::string::npos);
}

TEST_F(ModelKeys, FaultsInNestedSectionsAreNamed) {
  EXPECT_EQ(
      refusal("model:\n  rope:\n    theta: fast\n"),
      "run.yaml:3:12: model.rope.theta wants a number above 1 and at most 1000000000000, found \"fast\"");
  EXPECT_EQ(refusal("model:\n  rope:\n    thera: 5\n"),
            "run.yaml:3:5: unknown key \"model.rope.thera\"; did you mean \"model.rope.theta\"?");
  EXPECT_EQ(refusal("model:\n  theta: 5\n"),
            "run.yaml:2:3: unknown key \"model.theta\"; did you mean \"model.rope.theta\"?");
  EXPECT_EQ(refusal("model:\n  rope_theta: 5\n"),
            "run.yaml:2:3: unknown key \"model.rope_theta\"; did you mean \"model.rope.theta\"?");
  EXPECT_EQ(refusal("rope:\n  theta: 5\n"),
            "run.yaml:1:1: unknown section \"rope\"; did you mean \"model.rope\"?");
  EXPECT_EQ(refusal("model:\n  roqe:\n    theta: 5\n"),
            "run.yaml:2:3: unknown section \"model.roqe\"; did you mean \"model.rope\"?");
  EXPECT_EQ(refusal("model:\n  rope: 5\n").substr(0, 65),
            "run.yaml:2:9: model.rope is a section, whose keys (model.rope.the");
  EXPECT_EQ(refusal("model:\n  rope: {theta: 5, theta: 6}\n"),
            "run.yaml:2:20: \"model.rope.theta\" is given twice; the first is at run.yaml:2:10");
  EXPECT_EQ(refusal("model:\n  rope: {}\n  rope: {}\n"),
            "run.yaml:3:3: \"model.rope\" is given twice; the first is at run.yaml:2:3");
  const std::string nested =
      "\"model:\" and, indented below it, \"rope:\" and, indented below it, \"theta: ...\"";
  EXPECT_EQ(refusal("model.rope.theta: 5\n"),
            "run.yaml:1:1: in a file, \"model.rope.theta\" is written as " + nested);
  EXPECT_EQ(refusal("model:\n  rope.theta: 5\n"),
            "run.yaml:2:3: in a file, \"model.rope.theta\" is written as " + nested);
  EXPECT_EQ(refusal("model.rope: {theta: 5}\n"),
            "run.yaml:1:1: in a file, \"model.rope\" is written as \"model:\" and, indented below it, "
            "\"rope:\"");
  EXPECT_EQ(refused_override("model.rope=5").substr(0, 80),
            "--set model.rope=5: model.rope is a section; set one of its keys: model.rope.the");
  EXPECT_EQ(refused_override("rope.theta=5"),
            "--set rope.theta=5: unknown key \"rope.theta\"; did you mean \"model.rope.theta\"?");
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

  const std::string wants = "model.dropout.embedding wants a number of at least 0 and below 1, found ";
  EXPECT_EQ(refused_override("model.dropout=1"), "--set model.dropout=1: " + wants + "1");
  EXPECT_EQ(refused_override("model.dropout=-0.1"), "--set model.dropout=-0.1: " + wants + "-0.1");
  EXPECT_EQ(refused_override("model.dropout="), "--set model.dropout=: " + wants + "the text \"\"");
  EXPECT_EQ(refusal("model:\n  dropout: some\n"), "run.yaml:2:12: " + wants + "\"some\"");
  EXPECT_EQ(refused_override("model.dropout.attention=0.001"),
            "--set model.dropout.attention=0.001: model.dropout.attention: a dropout probability is rounded "
            "to a multiple of 1/256, and 0.001 would be 0: set 0 for none, or 0.00390625 to 0.99609375");
  EXPECT_NE(refused_override("model.dropout.attention=0.9999").find("0.9999 would be 1"), std::string::npos);
  EXPECT_EQ(
      refusal("model:\n  dropout: [0.1]\n"),
      "run.yaml:2:12: model.dropout is a section, whose keys (model.dropout.embedding, "
      "model.dropout.residual, model.dropout.attention) stand indented below it, or takes one value for "
      "all; found a list");
  EXPECT_EQ(refusal("model:\n  dropout:\n    branches: 0.1\n"),
            "run.yaml:3:5: unknown key \"model.dropout.branches\"; known: model.dropout.embedding, "
            "model.dropout.residual, model.dropout.attention");
  EXPECT_EQ(refused_override("model.dropuot=0.1"),
            "--set model.dropuot=0.1: unknown key \"model.dropuot\"; did you mean \"model.dropout\"?");
}

TEST_F(ModelKeys, OfAttention) {
  const auto with = [&](const std::vector<std::string>& overrides) { return refusal(kLlama, overrides); };
  EXPECT_EQ(with({"model.kv_heads=3"}),
            "--set model.kv_heads=3: model.kv_heads 3 does not divide model.heads 4 (run.yaml:6:10); the "
            "nearest that do are 2 and 4");
  EXPECT_EQ(with({"model.kv_heads=8"}),
            "--set model.kv_heads=8: model.kv_heads 8 does not divide model.heads 4 (run.yaml:6:10); the "
            "nearest that does is 4");
  EXPECT_EQ(with({"model.kv_heads=0"}),
            "--set model.kv_heads=0: model.kv_heads wants auto or a whole number of at least 1, found 0");
  EXPECT_EQ(with({"model.head_dim=12"}),
            "--set model.head_dim=12: model.head_dim wants auto or a multiple of 8 of at least 8, found 12");
  EXPECT_EQ(with({"model.heads=6"}),
            "--set model.heads=6: model.heads 6 does not divide model.channels 64 (run.yaml:7:13); the "
            "nearest that do are 4 and 8, or set model.head_dim");
  EXPECT_EQ(with({"model.heads=64"}),
            "--set model.heads=64: model.heads 64 makes heads of 1, an odd number that cannot be rotated in "
            "pairs, of model.channels 64 (run.yaml:7:13); set model.head_dim, or model.positions=learned");
  EXPECT_EQ(with({"model.heads=1000000", "model.head_dim=65536"}),
            "--set model.head_dim=65536: model.head_dim 65536 makes attention wider than 4000000 with "
            "model.heads 1000000 (--set model.heads=1000000)");
}

TEST_F(ModelKeys, OfRotaryPositions) {
  const auto with = [&](const std::vector<std::string>& overrides) { return refusal(kLlama, overrides); };
  EXPECT_EQ(refusal("model:\n  rope:\n    theta: 5e5\n"),
            "run.yaml:3:12: model.rope.theta 500000 is of rotary positions, but model.positions learned "
            "(default); set model.positions=rope");
  EXPECT_EQ(refusal("model:\n  qk_norm: true\n"),
            "run.yaml:2:12: model.qk_norm true needs rotary positions, but model.positions learned "
            "(default); set model.positions=rope");
  EXPECT_EQ(with({"model.position_extension=repeat"}),
            "--set model.position_extension=repeat: model.position_extension repeat extends a learned table, "
            "but model.positions rope (run.yaml:3:14); rotary positions need no extension: set "
            "model.context alone");
  EXPECT_EQ(with({"model.rope.factor=8"}),
            "--set model.rope.factor=8: model.rope.factor 8 has no effect with model.rope.scaling none "
            "(default); it is of linear, llama3 or yarn");
  EXPECT_EQ(with({"model.rope.scaling=linear", "model.rope.beta_fast=16"}),
            "--set model.rope.beta_fast=16: model.rope.beta_fast 16 has no effect with model.rope.scaling "
            "linear (--set model.rope.scaling=linear); it is of yarn");
  EXPECT_EQ(
      with({"model.rope.scaling=llama3", "model.rope.factor=0.5"}),
      "--set model.rope.factor=0.5: model.rope.factor wants a number of at least 1 and at most 1000000, "
      "found 0.5");
  EXPECT_EQ(with({"model.rope.scaling=llama3", "model.rope.low_frequency=4"}),
            "--set model.rope.low_frequency=4: model.rope.low_frequency 4 is not below "
            "model.rope.high_frequency 4 (default)");
  EXPECT_EQ(with({"model.rope.scaling=yarn", "model.rope.beta_slow=32"}),
            "--set model.rope.beta_slow=32: model.rope.beta_slow 32 is not below model.rope.beta_fast 32 "
            "(default)");
  EXPECT_EQ(with({"model.rope.attention_factor=0"}),
            "--set model.rope.attention_factor=0: model.rope.attention_factor wants auto or a number above 0 "
            "and at most 1000000, found 0");
  EXPECT_EQ(with({"model.rope.scaling=yarn"}),
            "--set model.rope.scaling=yarn: model.rope.scaling yarn changes nothing with model.rope.factor 1 "
            "(default); set the factor too, such as --set model.rope.factor=4");
  EXPECT_EQ(load(kLlama, {"model.rope.scaling=yarn", "model.rope.factor=1"}).model.rope.factor, 1);
  EXPECT_EQ(with({"model.rope.scaling=yran"}),
            "--set model.rope.scaling=yran: model.rope.scaling wants none, linear, llama3 or yarn, found "
            "\"yran\"; did you mean yarn?");
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

TEST_F(ModelKeys, FamiliesLoad) {
  load(kLlama);
  load(kLlama, {"model.kv_heads=2", "model.tied=false"});
  load(kLlama, {"model.bias=qkv"});
  load(kLlama, {"model.qk_norm=true", "model.head_dim=32"});
  load("", {"model.mlp=relu", "model.tied=false"});
}

TEST_F(ModelKeys, WhatTheBackwardRecomputes) {
  const auto keep = [&](const std::string& words, std::string_view yaml = kLlama) {
    return load(yaml, {"train.recompute=" + words}).train.recompute;
  };
  EXPECT_EQ(keep("none"), Keep{});
  EXPECT_EQ(keep("norms+activation"), (Keep{Recomputed::kNorms, Recomputed::kActivation}));
  EXPECT_EQ(keep("mlp+norms", ""), (Keep{Recomputed::kMlp, Recomputed::kNorms}));
  EXPECT_NE(print_config(load(kLlama, {"train.recompute=activation+norms"}))
                .find("\n  recompute: norms+activation\n"),
            std::string::npos);
  const auto refused = [&](const std::string& words) {
    return refused_override("train.recompute=" + words).substr(std::string("--set train.recompute=").size());
  };
  EXPECT_EQ(refused("activation"),
            "activation: train.recompute activation names the activation of a gated MLP, but model.mlp gelu "
            "(default); mlp recomputes the hidden layer of any MLP");
  EXPECT_EQ(refused("norm"),
            "norm: train.recompute wants none, norms, attention, activation, mlp or block, found \"norm\"; "
            "did you mean norms?");
  EXPECT_EQ(refused("norms+mpl+block"),
            "norms+mpl+block: train.recompute wants none, norms, attention, activation, mlp or block, found "
            "\"mpl\"");
  EXPECT_EQ(refused("norms+none"),
            "norms+none: train.recompute is \"none\" or words with a plus between them, found "
            "\"norms+none\"");
  EXPECT_EQ(refused("norms+mlp+norms"),
            "norms+mlp+norms: train.recompute names norms twice, found \"norms+mlp+norms\"");
  for (const char* list : {"norms,mlp", "[norms, mlp]", "norms mlp"})
    EXPECT_NE(refused(list).find("several have a plus between them: norms+attention"), std::string::npos)
        << refused(list);
  EXPECT_NE(refused_override("train.lora.parts=q_proj,v_proj").find("attention+mlp"), std::string::npos);
  for (const char* bad : {"norms+", "+norms", "norms++mlp", "\"\"", "[norms]", "norms, mlp"})
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
  for (const char* bad : {"-1", "most"})
    EXPECT_EQ(refused_override(std::string("train.classifier_chunk=") + bad).substr(24 + 5),
              fmt::format("{}: train.classifier_chunk wants auto, all or a whole number of at least 1, found "
                          "{}",
                          bad, bad[0] == '-' ? "-1" : "\"most\""));
  EXPECT_EQ(
      refused_override("checkpoint.dtype=fp16"),
      "--set checkpoint.dtype=fp16: checkpoint.dtype wants fp32 or bf16, found \"fp16\"; did you mean fp32 "
      "or bf16?");
}

}  // namespace
}  // namespace tessera
