// train.lora in the train program: what it prints, refuses, saves and resumes, and what PEFT makes of it.
#include <map>

#include "kernels/base/json_text.h"
#include "model/formats/safetensors.h"
#include "tests/python.h"
#include "tests/train_program.h"
#include "train/parallel/make_communicator.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTensorFiles[] = {"optimizer.safetensors", "model.safetensors",
                                        "adapter/adapter_model.safetensors", "adapter/adapter_config.json"};

constexpr const char* kGpt2 =
    "model:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 2\n  channels: 16\n";
constexpr const char* kQwen =
    "model:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 4\n  kv_heads: 2\n  channels: 32\n"
    "  head_dim: 8\n  mlp_width: 24\n  mlp: swiglu\n  norm: rmsnorm\n  positions: rope\n  bias: qkv\n";
constexpr const char* kData =
    "device: cpu\ndata:\n  train: text.txt\n  validation: held_out.txt\n"
    "evaluation:\n  every: 2\n  sequences: 1000\nsampling:\n  every: 0\n";

struct LoraRun : TrainProgram {
  LoraRun() : TrainProgram("") {
    write("held_out.txt", "line 3 of a text that was held out, long enough for two sequences of 32 bytes");
    make_base("base", kGpt2, 5);
    write("small.yaml",
          std::string(kData) +
              "train:\n  folder: out\n  init_from: base\n  steps: 8\n  tokens_per_step: 128\n"
              "  micro_batch: 2\n  lora:\n    rank: 4\n    alpha: 8\n"
              "optimizer:\n  learning_rate: 3e-2\n  min_learning_rate: 1e-2\n  warmup_steps: 2\n"
              "checkpoint:\n  every: 4\n  keep: 0\n");
  }

  // The weights that a short run writes, without what is the run's
  void make_base(const std::string& name, const std::string& model, int seed) {
    write("base.yaml",
          kData + model +
              "train:\n  folder: base_run\n  steps: 2\n  tokens_per_step: 128\n  micro_batch: 2\n"
              "checkpoint:\n  every: 0\n");
    const ProcessResult result = run_process(
        TRAIN_BINARY, {"--config", "base.yaml", "--overwrite", "--set", "train.seed=" + std::to_string(seed)},
        {.folder = folder});
    ASSERT_EQ(result.status, 0) << result.error;
    fs::create_directory(folder / name);
    for (const char* file : {"model.safetensors", "config.json"})
      fs::copy_file(folder / "base_run/checkpoints/step_00000002" / file, folder / name / file,
                    fs::copy_options::overwrite_existing);
  }

  void expect_peft_agrees(const std::string& base, const std::string& parts);
  std::string trains(const std::vector<std::string>& arguments) {
    const ProcessResult result = train(arguments);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    return result.out;
  }
  std::string loss_after(const std::string& step, const std::string& run) {
    std::string loss;
    for (const std::string& line : losses(run))
      if (line.starts_with(step + " validation_loss")) loss = line.substr(line.rfind(' ') + 1);
    return loss;
  }
  fs::path checkpoint(const std::string& run, int step) const {
    return folder / run / "checkpoints" / fmt::format("step_{:08}", step);
  }
};

TEST_F(LoraRun, ResumesWithTheSameBits) {
  for (const std::string dtype : {"fp32", "bf16"}) {  // of the merged weights
    const std::vector<std::string> words{"--set", "checkpoint.dtype=" + dtype, "--set",
                                         "train.folder=" + dtype};
    const std::string out = trains(words);
    EXPECT_NE(out.find("rank 4, alpha 8, attention+mlp: 2,048"), std::string::npos) << out;
    const std::vector<std::string> whole = losses(dtype);
    std::vector<std::string> files;
    for (const char* name : kTensorFiles) files.push_back(read_file(checkpoint(dtype, 8) / name));
    const SafetensorsReader optimizer(checkpoint(dtype, 8) / "optimizer.safetensors");
    for (const auto& [name, entry] : optimizer.entries())
      EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
    fs::remove_all(checkpoint(dtype, 8));
    std::vector<std::string> again = words;
    again.push_back("--resume");
    trains(again);
    EXPECT_EQ(losses(dtype), whole);
    size_t i = 0;
    for (const char* name : kTensorFiles)
      EXPECT_TRUE(read_file(checkpoint(dtype, 8) / name) == files[i++]) << name;
    EXPECT_EQ(train({"--verify", dtype}).status, 0);
  }
}

// Frozen weights in FP8: the base is loaded again, and has the same values.
TEST_F(LoraRun, ResumesWithTheSameBitsInFp8) {
  const std::vector<std::string> words{"--set", "train.gemm_dtype=fp8", "--set", "train.fp8.edges=true",
                                       "--set", "train.fp8.head=true"};
  const std::string out = trains(words);
  EXPECT_NE(out.find("blocks 0 to 1 of 2, and the logits; delayed scales"), std::string::npos) << out;
  const std::vector<std::string> whole = losses("out");
  const auto files = [&] {
    std::vector<std::string> bytes{read_file(checkpoint("out", 8) / "state.json")};
    for (const char* name : kTensorFiles) bytes.push_back(read_file(checkpoint("out", 8) / name));
    return bytes;
  };
  const std::vector<std::string> before = files();
  EXPECT_NE(before[0].find("fp8_scales"), std::string::npos);
  fs::remove_all(checkpoint("out", 8));
  std::vector<std::string> again = words;
  again.push_back("--resume");
  trains(again);
  EXPECT_EQ(losses("out"), whole);
  EXPECT_TRUE(files() == before);
  // The merged weights are those that the evaluation read: values in FP8, and the adapters'.
  trains({"--set", "train.init_from=out/checkpoints/step_00000008", "--set", "train.lora.rank=none", "--set",
          "train.lora.alpha=16", "--set", "train.folder=merged", "--set", "train.steps=1"});
  const double unmerged = std::stod(loss_after("8", "out"));
  EXPECT_LT(unmerged, 0.99 * std::stod(loss_after("0", "out"))) << "nothing was learned";
  EXPECT_NEAR(std::stod(loss_after("0", "merged")), unmerged, 2e-6 * unmerged);
  trains({"--resume"});  // a run in FP8 goes on without
}

// A run from the merged weights begins where the run with adapters ended.
TEST_F(LoraRun, TheMergedWeightsHaveTheSameLoss) {
  trains({});
  const double unmerged = std::stod(loss_after("8", "out"));
  EXPECT_LT(unmerged, 0.99 * std::stod(loss_after("0", "out"))) << "nothing was learned";
  trains({"--set", "train.init_from=out/checkpoints/step_00000008", "--set", "train.lora.rank=none", "--set",
          "train.lora.alpha=16", "--set", "train.folder=merged", "--set", "train.steps=1"});
  EXPECT_NEAR(std::stod(loss_after("0", "merged")), unmerged, 2e-6 * unmerged);
}

TEST_F(LoraRun, RemovesOldCheckpointsWithTheirAdapters) {
  trains({"--set", "checkpoint.every=2", "--set", "checkpoint.keep=1"});
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "out/checkpoints"), fs::directory_iterator{}), 1);
  write("out/checkpoints/step_00000008/adapter/notes.txt", "of someone else");
  trains({"--overwrite", "--set", "train.steps=4"});
  EXPECT_TRUE(fs::exists(folder / "out/checkpoints/step_00000008/adapter/notes.txt"));
  EXPECT_TRUE(fs::exists(checkpoint("out", 4) / "adapter/adapter_model.safetensors"));
}

TEST_F(LoraRun, FindsDamageInTheAdapter) {
  trains({"--set", "train.steps=4"});
  const fs::path file = checkpoint("out", 4) / "adapter/adapter_model.safetensors";
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  std::ofstream(file, std::ios::binary) << bytes;
  refused({"--resume"}, {"adapter/adapter_model.safetensors is damaged", "checksum"});
}

TEST_F(LoraRun, RefusesAnotherBase) {
  trains({"--set", "train.steps=4"});
  make_base("other", kGpt2, 6);
  refused({"--resume", "--set", "train.init_from=other"},
          {"weights in other", "their checksum is", "train.init_from="});
  fs::rename(folder / "base", folder / "moved");
  refused({"--resume"}, {"train.init_from: base", "folder"});
  trains({"--resume", "--set", "train.init_from=moved"});
}

TEST_F(LoraRun, RefusesWhatItCannotDo) {
  trains({"--set", "train.steps=4"});
  refused({"--resume", "--set", "train.lora.rank=8"}, {"rank 4, alpha 8, attention+mlp", "has rank 8"});
  refused({"--resume", "--set", "train.lora.rank=none", "--set", "train.lora.alpha=16"}, {"has none"});
  refused({"--set", "train.init_from=", "--set", "model.vocab_size=257", "--set", "model.context=32", "--set",
           "model.layers=1", "--set", "model.heads=2", "--set", "model.channels=16", "--set",
           "train.folder=next"},
          {"train.lora.rank is 4, and adapters belong to a trained model", "train.init_from=FOLDER"});
  refused({"--set", "train.lora.rank=17"}, {"train.lora.rank 17 is more than model.channels 16"});
  refused({"--set", "train.lora.rank=0"}, {"none", "at least 1"});
  refused({"--set", "train.lora.parts=none"}, {"train.lora.parts none"});
  refused({"--set", "train.lora.parts=q_proj"}, {"train.lora.parts", "none, attention, mlp or router"});
  refused({"--set", "train.lora.rank=none"}, {"train.lora.alpha 8", "no effect with train.lora.rank none"});
  refused({"--set", "train.freeze=norms"}, {"train.freeze norms", "train.lora.rank 4"});
  refused({"--set", "train.lora.dropout=0.1"}, {"train.lora.dropout"});
  refused({"--set", "train.init_from=out/checkpoints/step_00000004/adapter"},
          {"adapter of PEFT", "merge_and_unload"});
}

TEST_F(LoraRun, ThePlanTellsWhatItSaves) {
  const std::string plan = trains({"--plan"});
  EXPECT_NE(plan.find("rank 4, alpha 8, attention+mlp: 2,048"), std::string::npos) << plan;
}

// Phases of train.context_schedule, and documents that are packed
TEST_F(LoraRun, WorksWithSchedulesAndPackedDocuments) {
  trains({"--set", "train.context_schedule=0:16,4:32"});
  const std::vector<std::string> whole = losses("out");
  fs::remove_all(checkpoint("out", 8));
  trains({"--resume", "--set", "train.context_schedule=0:16,4:32"});
  EXPECT_EQ(losses("out"), whole);
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += fmt::format("{{\"text\": \"a document of number {}\"}}\n", i);
  write("notes.jsonl", lines);
  ASSERT_EQ(run_process(PREPARE_BINARY, {"notes.jsonl", "--output", "notes"}, {.folder = folder}).status, 0);
  trains({"--set", "data.train=notes", "--set", "data.validation=", "--set", "data.documents=mask", "--set",
          "train.recompute=block", "--set", "train.folder=packed"});
}

// Rank 0 writes what both have, however the adapters are cut in two. The norm of the gradients
// is that of two parts then, rounded once more: without clipping no weight depends on it.
TEST_F(LoraRun, TwoRanksWriteTheSameFiles) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const auto files = [&](const std::string& run) {
    std::vector<std::string> bytes;
    for (const char* name : kTensorFiles) bytes.push_back(read_file(checkpoint(run, 8) / name));
    return bytes;
  };
  const auto trains_on_two = [&](std::vector<std::string> switches) {
    switches.insert(switches.end(), {"--ranks", "2", "--set", "optimizer.max_grad_norm=0"});
    trains(switches);
  };
  const std::string kinds[] = {"none", "optimizer", "gradients", "weights"};
  for (const std::string& shard : kinds)
    trains_on_two({"--set", "parallel.shard=" + shard, "--set", "train.folder=" + shard});
  const std::vector<std::string> whole = files("weights");
  for (const std::string& shard : kinds) EXPECT_TRUE(files(shard) == whole) << shard;
  fs::remove_all(checkpoint("weights", 8));
  // As if the run had been killed while it wrote that checkpoint
  fs::create_directories(folder / "weights/checkpoints/step_00000008.unfinished/adapter");
  write("weights/checkpoints/step_00000008.unfinished/adapter/adapter_model.safetensors.tmp", "half");
  trains_on_two({"--resume", "--set", "train.folder=weights"});
  EXPECT_TRUE(files("weights") == whole);
  EXPECT_FALSE(fs::exists(folder / "weights/checkpoints/step_00000008.unfinished"));
}

// Whose frozen weights are gathered as bytes, or whole on each rank
TEST_F(LoraRun, TwoRanksInFp8WriteTheSameFiles) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  std::vector<std::string> whole;
  for (const std::string shard : {"gradients", "weights"}) {
    trains({"--ranks", "2", "--set", "train.gemm_dtype=fp8", "--set", "train.fp8.edges=true", "--set",
            "parallel.shard=" + shard, "--set", "train.folder=" + shard});
    std::vector<std::string> files;
    for (const char* name : kTensorFiles) files.push_back(read_file(checkpoint(shard, 8) / name));
    if (whole.empty()) whole = files;
    EXPECT_TRUE(files == whole);
  }
}

TEST_F(LoraRun, ItsAdapterIsExported) {
  trains({});
  const auto exported = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--format", "peft"});
    return run_process(EXPORT_BINARY, arguments, {.folder = folder});
  };
  const ProcessResult result = exported({"out", "--output", "mine"});
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(
      result.out.find("export: wrote mine: adapter of GPT-2, parameters 2,048, fp32, tensors 16, files 2, "),
      0u)
      << result.out;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
    EXPECT_EQ(read_file(folder / "mine" / name), read_file(checkpoint("out", 8) / "adapter" / name));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "mine"), {}), 2);

  const auto refused = [&](const std::vector<std::string>& arguments, const char* part) {
    const ProcessResult bad = exported(arguments);
    EXPECT_EQ(bad.status, 1);
    EXPECT_NE(bad.error.find(part), std::string::npos) << bad.error;
  };
  refused({"out", "--output", "mine"}, "--force");
  EXPECT_EQ(exported({"out", "--output", "mine", "--force"}).status, 0);
  refused({"out", "--output", "new", "--dtype", "bf16"}, "in fp32");
  refused({"out", "--output", "new", "--tokenizer", "bytes"}, "no tokenizer");
  refused({"base_run", "--output", "new"}, "a run with train.lora");
  refused({"base", "--output", "new"}, "has no adapter");
  std::string bytes = read_file(checkpoint("out", 8) / "adapter/adapter_model.safetensors");
  bytes.back() ^= 1;
  write("out/checkpoints/step_00000008/adapter/adapter_model.safetensors", bytes);
  refused({"out", "--output", "new"}, "adapter_model.safetensors is damaged");
  EXPECT_FALSE(fs::exists(folder / "new"));
}

// Weights in fp32 by their names
std::map<std::string, std::string> weights_of(const fs::path& exported) {
  std::map<std::string, std::string> all;
  const SafetensorsReader file(exported / "model.safetensors");
  for (const auto& [name, entry] : file.entries())
    all[name] = {reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size()};
  return all;
}

TEST_F(LoraRun, ItsAdapterIsAddedToOtherWeights) {
  make_base("wide", "model:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 2\n  channels: 64\n", 5);
  const auto exported = [&](const std::string& run, std::vector<std::string> arguments) {
    fs::remove_all(folder / "mine");
    arguments.insert(arguments.begin(), {run, "--output", "mine", "--format"});
    const ProcessResult result = run_process(EXPORT_BINARY, arguments, {.folder = folder});
    EXPECT_EQ(result.status, 0) << result.error;
    return result.error;
  };
  const auto config = [&](const std::string& run) {
    return read_json(checkpoint(run, 8) / "adapter/adapter_config.json");
  };
  trains({"--set", "train.init_from=wide", "--set", "train.lora.parts=mlp"});
  EXPECT_FALSE(config("out").contains("base_stored_as"));
  EXPECT_EQ(exported("out", {"hf"}).find("rounded"), std::string::npos);
  const auto merged = weights_of(folder / "mine");
  exported("out", {"hf", "--base", "wide"});
  EXPECT_EQ(weights_of(folder / "mine"), merged) << "the base was not rounded: it is the same sum";

  const auto evaluated = [&] {
    const ProcessResult result = run_process(EVALUATE_BINARY,
                                             {"mine", "--data", "held_out.txt", "--sequence-length", "32",
                                              "--tokenizer", "bytes", "--json", "figures.json"},
                                             {.folder = folder});
    EXPECT_EQ(result.status, 0) << result.error;
    return read_json(folder / "figures.json")["loss"].get<double>();
  };
  for (const std::string form : {"nf4", "nf4_double", "mxfp4"}) {
    SCOPED_TRACE(form);
    trains({"--set", "train.init_from=wide", "--set", "train.lora.base=" + form, "--set",
            "train.folder=" + form});
    EXPECT_EQ(config(form)["base_stored_as"], form);
    EXPECT_NE(exported(form, {"peft"}).find("wide, rounded to " + form), std::string::npos);
    EXPECT_NE(exported(form, {"hf"}).find("--base wide"), std::string::npos);
    const auto rounded = weights_of(folder / "mine");
    EXPECT_EQ(rounded, weights_of(checkpoint(form, 8)));
    const double trained = std::stod(loss_after("8", form));
    EXPECT_NEAR(evaluated(), trained, 2e-6 * trained) << "the weights that it was trained on";
    EXPECT_NE(exported(form, {"hf", "--base", "wide"}).find("another loss"), std::string::npos);
    EXPECT_GT(std::abs(evaluated() - trained), 1e-5 * trained) << "the weights as they were";
    const auto plain = weights_of(folder / "mine");
    ASSERT_EQ(plain.size(), rounded.size());
    for (const auto& [name, values] : plain) {
      const bool is_matrix =
          name.find(".h.") != name.npos && name.find("c_") != name.npos && name.ends_with(".weight");
      EXPECT_EQ(values != rounded.at(name), is_matrix) << name;
    }
  }
  const ProcessResult none = run_process(
      EXPORT_BINARY, {"base", "--output", "new", "--format", "hf", "--base", "wide"}, {.folder = folder});
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.error.find("a run with train.lora"), std::string::npos) << none.error;
}

// PEFT opens the adapter on top of the base, and computes the loss that the run recorded.
void LoraRun::expect_peft_agrees(const std::string& base, const std::string& parts) {
  const std::string run = base + "_" + parts;
  SCOPED_TRACE(run);
  trains({"--set", "train.init_from=" + base, "--set", "train.lora.parts=" + parts, "--set",
          "train.folder=" + run});
  const ProcessResult result =
      run_process(python_program(),
                  {TESSERA_SOURCE_DIR "/tests/fixtures/check_adapter.py", base,
                   run + "/checkpoints/step_00000008", "held_out.txt", "32", loss_after("8", run)},
                  {.folder = folder});
  EXPECT_EQ(result.status, 0) << result.out << result.error;
}

TEST_F(LoraRun, PeftLoadsTheAdapter) {
  if (const auto missing = missing_in_python("torch, transformers, peft", folder); !missing.empty())
    GTEST_SKIP() << missing;
  make_base("qwen", kQwen, 5);
  for (const std::string base : {"base", "qwen"})
    for (const std::string parts : {"attention+mlp", "attention", "mlp"}) expect_peft_agrees(base, parts);
}

// A shared expert and a block without experts; experts whose files are one tensor, in each of its two layouts
TEST_F(LoraRun, PeftLoadsTheAdapterOfExperts) {
  if (const auto missing = missing_in_python("torch, transformers, peft", folder); !missing.empty())
    GTEST_SKIP() << missing;
  const std::string llama =
      "model:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 4\n  kv_heads: 2\n  channels: 32\n"
      "  mlp_width: 24\n  norm: rmsnorm\n  positions: rope\n  tied: false\n";
  const std::string experts = "  experts:\n    count: 4\n    active: 2\n    width: 16\n";
  make_base(
      "qwen2_moe",
      llama + "  mlp: swiglu\n  bias: qkv\n" + experts + "    shared_width: 40\n    dense_layers: [0]\n", 5);
  make_base("gpt_oss",
            llama + "  mlp: clamped_swiglu\n  bias: all\n  attention_sinks: true\n  head_dim: 8\n" + experts +
                "    router: softmax_of_chosen\n",
            5);
  make_base("granitemoe",
            llama +
                "  mlp: swiglu\n  bias: none\n  embedding_scale: 3\n  residual_scale: 0.5\n"
                "  logit_divisor: 2\n  query_scalar: 16\n" +
                experts + "    router: softmax_of_chosen\n",
            5);
  make_base("mixtral",
            llama + "  mlp: swiglu\n  bias: none\n  window: 7\n" + experts + "    renormalise: true\n", 5);
  for (const std::string base : {"qwen2_moe", "gpt_oss", "granitemoe", "mixtral"})
    EXPECT_EQ(text_value(read_json(folder / base / "config.json"), "model_type", base), base);
  expect_peft_agrees("qwen2_moe", "attention+mlp+router");
  expect_peft_agrees("qwen2_moe", "router");
  for (const std::string base : {"gpt_oss", "granitemoe", "mixtral"}) {
    expect_peft_agrees(base, "attention+mlp");
    expect_peft_agrees(base, "mlp+router");
  }
}

}  // namespace
}  // namespace tessera::testing
