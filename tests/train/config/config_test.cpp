#include "train/config/config.h"

#include <limits>

#include "tests/root_rights.h"
#include "tests/says.h"
#include "tests/train/config/config_file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TEST_F(ConfigFile, NothingIsTheDefaults) {
  Config wanted;
  wanted.train.folder = "runs/run";
  for (const char* yaml :
       {"", "\n\n", "# a comment\n", "---\n", "{}", "model:\n", "model:\n  # layers: 3\ntrain: {}\n"})
    EXPECT_EQ(load(yaml), wanted) << yaml;
}

TEST_F(ConfigFile, ReadsEveryKindOfValue) {
  const Config config = load(
      "\xEF\xBB\xBF"
      "device: cpu\r\n"
      "model: {layers: 3, heads: 2, channels: 64, attention: \"naive\"}  # a flow map, quotes\r\n"
      "data: {validation: 12}\r\n"
      "train:\r\n"
      "  folder: out/here\r\n"
      "  micro_batch: auto\r\n"
      "  deterministic: false\r\n"
      "  seed: 9223372036854775807\r\n"
      "optimizer:\r\n"
      "  learning_rate: 5e-4\r\n"
      "  min_learning_rate: .5e-4\r\n"
      "  epsilon: +1E-9\r\n"
      "sampling:\r\n"
      "  prompt: 'it''s'\r\n");
  EXPECT_EQ(config.device, DeviceRequest::kCpu);
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_EQ(config.model.attention, AttentionKind::kNaive);
  EXPECT_EQ(config.train.folder, "out/here");
  EXPECT_EQ(config.data.validation, "12");
  EXPECT_EQ(config.train.micro_batch, 0);
  EXPECT_FALSE(config.train.deterministic);
  EXPECT_EQ(config.train.seed, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(config.optimizer.learning_rate, 5e-4);
  EXPECT_EQ(config.optimizer.min_learning_rate, 5e-5);
  EXPECT_EQ(config.optimizer.epsilon, 1e-9);
  EXPECT_EQ(config.sampling.prompt, "it's");
}

TEST_F(ConfigFile, AWarmUpIsStepsOrAShareAndHasTwoNames) {
  const auto warmup = [&](const std::string& yaml, std::vector<std::string> overrides = {}) {
    return load(yaml, overrides).optimizer.warmup;
  };
  const std::string share = "optimizer:\n  warmup: 2.5%\n";
  EXPECT_EQ(warmup(share), WarmUp{.percent = 2.5});
  EXPECT_EQ(warmup("optimizer: {warmup: 0%}\n"), WarmUp{});
  EXPECT_EQ(warmup("optimizer:\n  warmup_steps: 7\n"), WarmUp{.steps = 7});
  EXPECT_EQ(warmup(share, {"optimizer.warmup_steps=7"}), WarmUp{.steps = 7});  // an override wins
  EXPECT_EQ(warmup("optimizer:\n  warmup_steps: 7\n", {"optimizer.warmup=3%"}), WarmUp{.percent = 3});
  EXPECT_EQ(warmup("", {"optimizer.warmup_steps=7", "optimizer.warmup_steps=8"}), WarmUp{.steps = 8});
  // A run says which names have changed, each once.
  const Config old = load("train:\n  matmul: fp8\n  recorded: false\n", {"train.products=own"});
  EXPECT_EQ(old.train.fp8.gemm_dtype, GemmDtype::kFp8);
  EXPECT_FALSE(old.train.cuda_graphs);
  EXPECT_EQ(old.train.gemm_backend, GemmSource::kTessera);
  ASSERT_EQ(old.notices.size(), 4u);
  EXPECT_NE(old.notices[0].find("run.yaml:2:11: train.matmul"), std::string::npos) << old.notices[0];
  EXPECT_NE(old.notices[0].find("train.gemm_dtype"), std::string::npos) << old.notices[0];
  EXPECT_TRUE(says(refusal("optimizer:\n  warmup: 3%\n  warmup_steps: 50\n"),
                   {"run.yaml:3:17", "optimizer.warmup_steps", "optimizer.warmup", "(run.yaml:2:11)"}));
  EXPECT_TRUE(says(refusal("", {"optimizer.warmup_steps=50", "optimizer.warmup=3%"}),
                   {"--set optimizer.warmup=3%", "optimizer.warmup", "optimizer.warmup_steps",
                    "--set optimizer.warmup_steps=50"}));
  for (const char* wrong : {"101%", "-1%", "-1", "3 %%", "0.5", "three", "\"3%\"", "1e3"})
    EXPECT_NE(refusal(std::string("optimizer: {warmup: ") + wrong + "}\n").find("such as 3%"),
              std::string::npos)
        << wrong;
  EXPECT_NE(refused_override("optimizer.warmup=2000000000").find("at most 1000000000"), std::string::npos);
}

TEST_F(ConfigFile, OverridesWinAndTheLastWins) {
  const std::vector<std::string> overrides = {"model.layers=4",
                                              "train.sequence_length=512",
                                              "model.layers=5",
                                              "sampling.prompt=\"a\\n=b\"",
                                              "train.sequence_length=auto",
                                              "data.validation=folder/*_val_*.bin",
                                              "train.init_from="};
  const Config config = load("model:\n  layers: 3\ntrain:\n  init_from: x\n", overrides);
  EXPECT_EQ(config.model.layers, 5);
  EXPECT_EQ(config.train.sequence_length, 0);
  EXPECT_EQ(config.sampling.prompt, "a\n=b");
  EXPECT_EQ(config.data.validation, "folder/*_val_*.bin");
  EXPECT_EQ(config.train.init_from, "");
}

TEST_F(ConfigFile, UnknownKeys) {
  EXPECT_TRUE(says(refusal("model:\n  layers: 2\n  atention: flash\n"),
                   {"run.yaml:3:3", "unknown", "\"model.atention\"", "\"model.attention\""}));
  EXPECT_TRUE(says(refusal("train:\n  learning_rate: 1\n"),
                   {"run.yaml:2:3", "unknown", "\"train.learning_rate\"", "\"optimizer.learning_rate\""}));
  EXPECT_TRUE(says(refusal("layers: 1\n"), {"run.yaml:1:1", "unknown", "\"layers\"", "\"model.layers\""}));
  EXPECT_TRUE(says(refusal("train:\n  every: 1\n"),
                   {"run.yaml:2:3", "unknown", "\"train.every\"", "\"evaluation.every\"",
                    "\"sampling.every\"", "\"checkpoint.every\""}));
  EXPECT_TRUE(says(refusal("optimizer:\n    beta: 1\n"), {"run.yaml:2:5", "unknown", "\"optimizer.beta\"",
                                                          "\"optimizer.beta1\"", "\"optimizer.beta2\""}));
  EXPECT_TRUE(says(
      refusal("checkpoint:\n  interval: 1\n"),
      {"run.yaml:2:3", "unknown", "\"checkpoint.interval\"", "known", "checkpoint.every", "checkpoint.keep",
       "checkpoint.keep_every", "checkpoint.keep_best", "checkpoint.dtype", "checkpoint.file_gib"}));
  EXPECT_TRUE(
      says(refusal("\nmodle:\n  layers: 1\n"), {"run.yaml:2:1", "unknown", "\"modle\"", "\"model\""}));
  EXPECT_TRUE(
      says(refusal("network:\n  layers: 1\n"), {"run.yaml:1:1", "unknown", "\"network\"", "known",
                                                "model.rope", "model.dropout", "train.lora", "train.fp8"}));
  EXPECT_TRUE(says(refusal("batch: 1\n"), {"run.yaml:1:1", "unknown", "\"batch\"", "known", "model.rope",
                                           "model.dropout", "train.lora", "train.fp8"}));
  EXPECT_TRUE(says(refusal("model.layers: 1\n"),
                   {"run.yaml:1:1", "\"model.layers\"", "\"model:\"", "\"layers: ...\""}));
}

TEST_F(ConfigFile, WholeNumbers) {
  const auto layers = [&](const std::string& value) {
    return refusal("device: cpu\nmodel:\n  layers: " + value + "\n");
  };
  const auto finds = [&](const std::string& value, const std::string& found) {
    return says(layers(value), {"run.yaml:3:11", "model.layers", "whole number", "1", found});
  };
  EXPECT_TRUE(finds("twelve", "\"twelve\""));
  for (const char* number : {"0", "-3", "1.5", "12.0", "5e2"}) EXPECT_TRUE(finds(number, number));
  for (const char* text :
       {"012", "0x10", "1_000", "99999999999k", "1,5", "true", "+-3", "-+3", "+", "nan", ".inf"})
    EXPECT_TRUE(finds(text, '"' + std::string(text) + '"'));
  EXPECT_TRUE(finds("-99999999999999999999", "-99999999999999999999"));
  EXPECT_TRUE(finds("\"12\"", "text \"12\""));
  EXPECT_TRUE(finds("~", "nothing"));
  EXPECT_TRUE(finds("[1, 2]", "list"));
  EXPECT_TRUE(finds("{a: 1}", "map"));
  EXPECT_TRUE(says(refusal("model:\n  layers:\n"), {"run.yaml:3:1", "model.layers", "1", "nothing"}));
  EXPECT_TRUE(says(layers("10001"), {"run.yaml:3:11", "model.layers", "10000", "10001"}));
  EXPECT_TRUE(says(layers("99999999999999999999"),
                   {"run.yaml:3:11", "model.layers", "10000", "99999999999999999999"}));
  EXPECT_TRUE(
      says(refusal("model:\n  channels: 100\n"), {"run.yaml:2:13", "model.channels", "8", "8", "100"}));
  EXPECT_TRUE(says(refusal("train:\n  micro_batch: -1\n"),
                   {"run.yaml:2:16", "train.micro_batch", "auto", "1", "-1"}));
  EXPECT_TRUE(
      says(refusal("train:\n  patience: auto\n"), {"run.yaml:2:13", "train.patience", "0", "\"auto\""}));
}

TEST_F(ConfigFile, Numbers) {
  const auto set = [&](const std::string& key, const std::string& value) {
    return refused_override("optimizer." + key + "=" + value);
  };
  for (const char* text :
       {"fast", "nan", ".nan", "inf", "-inf", ".inf", "1e999", "0x1p3", "1.5.2", "1e", "00.5", "5e-4s"}) {
    EXPECT_TRUE(says(set("learning_rate", text),
                     {fmt::format("--set optimizer.learning_rate={}", text), "optimizer.learning_rate",
                      "above 0", fmt::format("\"{}\"", text)}));
  }
  EXPECT_TRUE(says(set("learning_rate", "0"),
                   {"--set optimizer.learning_rate=0", "optimizer.learning_rate", "0", "0"}));
  EXPECT_TRUE(says(set("beta2", "1"), {"--set optimizer.beta2=1", "optimizer.beta2", "0", "1", "1"}));
  EXPECT_TRUE(
      says(set("beta1", "-0.1"), {"--set optimizer.beta1=-0.1", "optimizer.beta1", "0", "1", "-0.1"}));
  EXPECT_TRUE(says(set("weight_decay", "-1"),
                   {"--set optimizer.weight_decay=-1", "optimizer.weight_decay", "0", "-1"}));
  EXPECT_TRUE(says(refused_override("data.validation_fraction=0.51"),
                   {"--set data.validation_fraction=0.51", "data.validation_fraction", "0", "0.5", "0.51"}));
  EXPECT_EQ(refused_override("data.validation_fraction=0.5"), "accepted");
}

TEST_F(ConfigFile, WordsFlagsAndText) {
  EXPECT_TRUE(says(refusal("optimizer:\n  schedule: cosnie\n"),
                   {"run.yaml:2:13", "optimizer.schedule", "cosine", "linear", "constant", "wsd",
                    "\"cosnie\"", "cosine"}));
  EXPECT_TRUE(says(refusal("device: gpu\n"), {"run.yaml:1:9", "device", "auto", "cpu", "cuda", "\"gpu\""}));
  EXPECT_TRUE(says(refusal("device: [cpu]\n"), {"run.yaml:1:9", "device", "auto", "cpu", "cuda", "list"}));
  for (const char* text : {"yes", "True", "1", "on"}) {
    const std::string found = text == std::string("1") ? "1" : fmt::format("\"{}\"", text);
    EXPECT_TRUE(says(refusal(fmt::format("data:\n  shuffle: {}\n", text)),
                     {"run.yaml:2:12", "data.shuffle", "true", "false", found}));
  }
  EXPECT_TRUE(says(refusal("data:\n  shuffle: \"true\"\n"),
                   {"run.yaml:2:12", "data.shuffle", "true", "false", "text", "\"true\""}));
  EXPECT_TRUE(says(refusal("data:\n  train: \"\"\n"),
                   {"run.yaml:2:10", "data.train", "{a: 0.7, b: 0.3}", "text", "\"\""}));
  EXPECT_TRUE(says(refusal("data:\n  train: null\n"),
                   {"run.yaml:2:10", "data.train", "{a: 0.7, b: 0.3}", "nothing"}));
  EXPECT_TRUE(
      says(refusal("train:\n  folder: ~\n"), {"run.yaml:2:11", "train.folder", "\"\"", "none", "nothing"}));
  EXPECT_TRUE(says(refusal("train:\n  folder: {a: b}\n"),
                   {"run.yaml:2:11", "train.folder", "text", "map", "double quotes"}));
  EXPECT_TRUE(
      says(refusal("sampling:\n  prompt: \"\\N\"\n"),
           {"run.yaml:2:11", "sampling.prompt", "UTF-8", "text", "\"\x85\""}));  // what yaml-cpp makes of \N
}

TEST_F(ConfigFile, SeveralSources) {
  using Sources = std::vector<DataSource>;
  EXPECT_EQ(load("data:\n  train: a\n").data.train, (Sources{{"a", 1}}));
  EXPECT_EQ(load("data:\n  train: {a: 3}\n").data.train, (Sources{{"a", 1}}));  // a weight among none
  const Sources two = {{"b/*.bin", 0.7}, {"a", 3}};
  EXPECT_EQ(load("data:\n  train:\n    \"b/*.bin\": 0.7\n    a: 3\n").data.train, two);
  EXPECT_EQ(load("", {"data.train={\"b/*.bin\": 0.7, a: 3}"}).data.train, two);
  EXPECT_EQ(text_of(two), "b/*.bin (0.7), a (3)");
  EXPECT_TRUE(says(refusal("data:\n  train:\n    a: 1\n    b: 0\n"),
                   {"run.yaml:4:8", "data.train", "\"b\"", "0", "1000000000", "0"}));
  EXPECT_EQ(refusal("data:\n  train:\n    a: 1\n    a: 2\n"), "run.yaml:4:8: data.train names \"a\" twice");
  const auto finds = [&](const char* value, const char* found) {
    return says(refusal(fmt::format("data:\n  train: {}\n", value)),
                {"run.yaml:2:10", "data.train", "{a: 0.7, b: 0.3}", found});
  };
  EXPECT_TRUE(finds("[a, b]", "list"));
  EXPECT_TRUE(finds("{}", "map"));
  EXPECT_TRUE(finds("{[a]: 1}", "empty path"));
  EXPECT_TRUE(says(refusal("data:\n  train: {a: {b: 1}}\n"),
                   {"run.yaml:2:14", "data.train", "\"a\"", "above 0", "map"}));
}

TEST_F(ConfigFile, Duplicates) {
  EXPECT_TRUE(says(refusal("model:\n  layers: 2\n  heads: 2\n  layers: 2\n"),
                   {"run.yaml:4:3", "\"model.layers\"", "twice", "run.yaml:2:3"}));
  EXPECT_TRUE(says(refusal("model:\n  layers: 2\ndevice: cpu\nmodel:\n  heads: 2\n"),
                   {"run.yaml:4:1", "\"model\"", "twice", "run.yaml:1:1"}));
  EXPECT_TRUE(says(refusal("model: {heads: 2, \"heads\": 2}\n"),
                   {"run.yaml:1:19", "\"model.heads\"", "twice", "run.yaml:1:9"}));
}

TEST_F(ConfigFile, Shapes) {
  EXPECT_TRUE(says(refusal("- model\n"), {"run.yaml:1:1", "\"model:\"", "list"}));
  EXPECT_TRUE(says(refusal("# c\nlayers=12\n"), {"run.yaml:2:1", "\"model:\"", "\"layers=12\""}));
  EXPECT_TRUE(says(refusal("optimizer: adamw\n"),
                   {"run.yaml:1:12", "optimizer", "section", "optimizer.learning_rate"}));
  EXPECT_TRUE(says(refusal("checkpoint: 3\n"),
                   {"run.yaml:1:13", "section", "checkpoint.every", "checkpoint.keep",
                    "checkpoint.keep_every", "checkpoint.keep_best", "checkpoint.dtype", "3"}));
  EXPECT_TRUE(says(refusal("? [a]\n: 1\n"), {"run.yaml:1:3", "key", "list"}));
  EXPECT_TRUE(says(refusal("model:\n  ~: 1\n"), {"run.yaml:2:3", "key", "nothing"}));
  EXPECT_TRUE(says(refusal("device: cpu\n---\ndevice: cpu\n"), {"run.yaml:2:1", "second", "one document"}));
}

TEST_F(ConfigFile, Syntax) {
  EXPECT_TRUE(says(refusal("model:\n  layers: a: b\n"), {"run.yaml:2:12", "not YAML", "map"}));
  EXPECT_TRUE(says(refusal("model:\n  layers: [1, 2\n"), {"run.yaml:3:1", "not YAML", "flow"}));
  EXPECT_TRUE(says(refusal("model:\n\tlayers: 2\n"), {"run.yaml:2:8", "not YAML", "map"}));
  EXPECT_TRUE(says(refusal("train:\n  folder: \"abc\n"), {"run.yaml:3:1", "not YAML", "closed"}));
  EXPECT_TRUE(says(refusal("train:\n  folder: 'abc"), {"run.yaml:3:1", "not YAML", "closed"}));
  EXPECT_TRUE(
      says(refusal("data:\n  train: *.bin\n"), {"run.yaml:2:10", "not YAML", "anchor", "double quotes"}));
  EXPECT_TRUE(says(refusal("data:\n  train: r\xE9sum\xE9.txt\n"), {"run.yaml:2:11", "0xe9", "UTF-8"}));
  EXPECT_TRUE(
      says(refusal(std::string_view("data:\n  train: a\0b\n", 18)), {"run.yaml:2:11", "0x00", "UTF-8"}));
  for (const std::string bad : {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\xFF", "\x80"})
    EXPECT_EQ(refusal(bad).substr(0, 20), "run.yaml:1:1: byte 0") << bad;
  EXPECT_NE(refusal(std::string(100000, '[')), "accepted");  // and no overflow of the stack
}

TEST_F(ConfigFile, Files) {
  const auto of = [&](const fs::path& path) { return refusal_of([&] { load_config(path, {}); }); };
  EXPECT_TRUE(says(of(folder_ / "missing.yaml"), {"missing.yaml", "No such file"}));
  fs::create_directory(folder_ / "folder.yaml");
  EXPECT_TRUE(says(of(folder_ / "folder.yaml"), {"folder.yaml", "folder", "YAML"}));
  const fs::path closed = write("closed.yaml", "");
  fs::permissions(closed, fs::perms::none);
  const testing::WithoutRightsOverFiles nobody;
  EXPECT_TRUE(says(of(closed), {"closed.yaml", "Permission denied"}));
}

TEST_F(ConfigFile, Overrides) {
  EXPECT_TRUE(says(refused_override("model.layers=twelve"),
                   {"--set model.layers=twelve", "model.layers", "1", "\"twelve\""}));
  EXPECT_TRUE(says(refused_override("model.atention=flash"),
                   {"--set model.atention=flash", "unknown", "\"model.atention\"", "\"model.attention\""}));
  EXPECT_TRUE(says(refused_override("model.layers"),
                   {"--set model.layers", "\"=\"", "--set key=value", "--set train.steps=100"}));
  EXPECT_TRUE(says(refused_override("checkpoint=3"),
                   {"--set checkpoint=3", "checkpoint.every", "checkpoint.keep", "checkpoint.keep_every",
                    "checkpoint.keep_best", "checkpoint.dtype"}));
  EXPECT_EQ(refused_override("=3").substr(0, 31), "--set =3: unknown key \"\"; known");
  EXPECT_TRUE(says(refused_override("train.steps="),
                   {"--set train.steps=", "train.steps", "auto", "1", "text", "\"\""}));
  EXPECT_TRUE(says(refused_override("train.steps= # x"),
                   {"--set train.steps=", "#", "train.steps", "auto", "1", "nothing"}));
  EXPECT_TRUE(says(refused_override("data.train=a: b"),
                   {"--set data.train=a", "data.train", "\"a\"", "0", "1000000000", "\"b\""}));
  EXPECT_TRUE(says(refused_override("data.train=*.bin"),
                   {"--set data.train=*.bin", "not YAML", "anchor", "double quotes"}));
  EXPECT_EQ(refused_override("data.train=\"*.bin\""), "accepted");
  EXPECT_TRUE(says(refused_override("data.train=\"a"),
                   {"--set data.train=\"a", "not YAML", "closed", "double quotes"}));
  EXPECT_TRUE(says(refused_override("sampling.prompt=a\nb"),
                   {"--set sampling.prompt=a\nb", "line break", "\\n", "double quotes"}));
  EXPECT_TRUE(
      says(refused_override("sampling.prompt=\xFF"), {"--set sampling.prompt=\xFF", "0xff", "UTF-8"}));
}

TEST_F(ConfigFile, SeveralKeys) {
  EXPECT_TRUE(says(refusal("model:\n  heads: 7\n"),
                   {"run.yaml:2:10", "model.heads", "7", "model.channels", "768", "(default)", "6", "8"}));
  EXPECT_TRUE(
      says(refusal("model:\n  channels: 16\n  heads: 11\n"),
           {"run.yaml:3:10", "model.heads", "11", "model.channels", "16", "(run.yaml:2:13)", "8", "16"}));
  EXPECT_TRUE(says(refusal("model:\n  heads: 20\n  channels: 16\n"),
                   {"run.yaml:2:10", "model.heads", "20", "model.channels", "16", "(run.yaml:3:13)", "16"}));
  EXPECT_TRUE(says(refusal("model:\n  heads: 12\n", {"model.channels=64"}),
                   {"--set model.channels=64", "model.heads", "12", "(run.yaml:2:10)", "model.channels", "64",
                    "8", "16"}));
  EXPECT_EQ(refusal("model:\n  context: 128\ntrain:\n  sequence_length: 256\n"),
            "run.yaml:4:20: train.sequence_length 256 is more than model.context 128 (run.yaml:2:12)");
  EXPECT_TRUE(says(refusal("train:\n  tokens_per_step: 1000\n", {"model.context=256"}),
                   {"--set model.context=256", "train.tokens_per_step", "1000", "(run.yaml:2:20)",
                    "model.context", "256", "768", "1024"}));
  EXPECT_TRUE(says(refusal("train:\n  sequence_length: 300\n  tokens_per_step: 100\n"),
                   {"run.yaml:3:20", "train.tokens_per_step", "100", "train.sequence_length", "300",
                    "(run.yaml:2:20)", "300"}));
  EXPECT_TRUE(says(refused_override("train.micro_batch=3"),
                   {"--set train.micro_batch=3", "train.tokens_per_step", "524288", "(default)", "1024",
                    "train.micro_batch", "3", "522240", "525312"}));
  EXPECT_EQ(load("", {"train.steps=50"}).optimizer.warmup.steps, 100);  // a short run only warms up
  EXPECT_TRUE(says(refusal("data:\n  documents: mask\n  shift: true\n"),
                   {"run.yaml:3:10", "data.shift", "true", "data.documents", "(run.yaml:2:14)",
                    "data.shift=auto", "data.documents=join"}));
  EXPECT_FALSE(load("data:\n  documents: mask\n").data.shifts());
  EXPECT_TRUE(says(refusal("optimizer:\n  min_learning_rate: 0.1\n"),
                   {"run.yaml:2:22", "optimizer.min_learning_rate", "0.1", "optimizer.learning_rate",
                    "0.0006", "(default)"}));
}

TEST_F(ConfigFile, FolderOfTheRun) {
  EXPECT_EQ(load_config(write("my.run.yaml", ""), {}).train.folder, "runs/my.run");
  EXPECT_EQ(load("train:\n  folder: here\n").train.folder, "here");
  EXPECT_EQ(load("train:\n  folder: here\n", {"train.folder="}).train.folder, "runs/run");
}

}  // namespace
}  // namespace tessera
