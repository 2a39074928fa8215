// The program export: what it writes, what it refuses, and what an interruption leaves.
#include <sys/stat.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "model/formats/gguf.h"
#include "model/formats/llm_c.h"
#include "model/formats/weights.h"
#include "tests/support.h"
#include "tests/train/export/export_program.h"
#include "train/run/run_lock.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Exporting : public ExportProgram {
 protected:
  // The weights of one folder, rounded to `format`, are those of another.
  void expect_weights(const fs::path& found, const fs::path& wanted, NumberFormat format) const {
    const ModelConfig model = read_model_config(wanted).model;
    EXPECT_EQ(read_model_config(found).model, model);
    const WeightsFolder ours(found, model), theirs(wanted, model);
    EXPECT_EQ(ours.format(), format);
    for (const ParamPlace& place : ParamLayout(model, 1).places)
      ours.read(place, [&](const ParamPlace&, const Tensor& a) {
        theirs.read(place, [&](const ParamPlace&, const Tensor& b) {
          std::vector<float> rounded(floats(b).size());
          std::vector<std::byte> bytes;
          encode(format, floats(b), place.info.name, [&](std::span<const std::byte> part) {
            bytes.insert(bytes.end(), part.begin(), part.end());
          });
          decode(format, bytes, rounded);
          EXPECT_TRUE(std::ranges::equal(floats(a), rounded)) << place.info.name;
        });
      });
  }

  // A run of two checkpoints on text.txt
  fs::path train(const std::vector<std::string>& more = {}) const {
    std::string text;
    for (int i = 0; i < 500; ++i) text += fmt::format("line {} of a text that repeats itself\n", i % 17);
    write("text.txt", text);
    write(
        "small.yaml",
        fmt::format("device: cpu\nmodel:\n  vocab_size: {}\n  context: 32\n  layers: 2\n  heads: 2\n  "
                    "channels: 32\ndata:\n  train: data\ntrain:\n  steps: 2\n"
                    "  tokens_per_step: 64\n  micro_batch: 2\n  folder: runs/small\nevaluation:\n  every: 0\n"
                    "sampling:\n  every: 0\ncheckpoint:\n  every: 1\n  keep: 0\n",
                    kFixtureTokens));
    fs::copy_file(tokenizer_fixture("gpt2.json"), folder / "tokenizer.json");
    const ProcessResult prepared =
        run_process(PREPARE_BINARY, {"text.txt", "--tokenizer", "tokenizer.json", "--output", "data"},
                    {.folder = folder});
    EXPECT_EQ(prepared.status, 0) << prepared.error;
    std::vector<std::string> arguments{"--config", "small.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult result = run_process(TRAIN_BINARY, arguments, {.folder = folder});
    EXPECT_EQ(result.status, 0) << result.error;
    return folder / "runs/small";
  }
};

TEST_F(Exporting, EveryModelInEveryFormat) {
  for (const SmallModel& one : small_models()) {
    SCOPED_TRACE(one.name);
    const fs::path source = make_model(one.name, one.model, one.tokenizer);
    // llama.cpp would look for Phi-3's tokens.
    const std::string name = one.name.starts_with("phi3") ? "phi " + one.name.substr(3) : one.name;
    for (const NumberFormat format : {NumberFormat::kF32, NumberFormat::kF16, NumberFormat::kBF16}) {
      exported(one.name, "hf", "out", {"--dtype", name_of(format), "--force"});
      expect_weights(folder / "out", source, format);
    }
    for (const char* format : {"f32", "f16", "bf16", "q8_0"}) {
      exported(one.name, "gguf", "out.gguf", {"--dtype", format, "--force"});
      EXPECT_EQ(std::get<std::string>(GgufReader(folder / "out.gguf").fields().at("general.name")), name);
    }
    fs::remove_all(source);
  }
}

TEST_F(Exporting, ExpertsInMxfp4AreKeptInGgufAndWidenedForHuggingFace) {
  make_mxfp4_model("source");
  exported("source", "gguf", "out.gguf");
  const GgufReader file(folder / "out.gguf");
  for (const char* name : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"})
    EXPECT_EQ(file.tensors().at(fmt::format("blk.0.{}.weight", name)).tensor.format, NumberFormat::kMxfp4);
  EXPECT_EQ(file.tensors().at("blk.0.attn_q.weight").tensor.format, NumberFormat::kBF16);
  exported("source", "hf", "out");
  const ModelConfig model = read_model_config(folder / "source").model;
  const WeightsFolder widened(folder / "out", model), source(folder / "source", model);
  EXPECT_EQ(widened.format(), NumberFormat::kBF16);
  for (const ParamPlace& place : ParamLayout(model, 1).places)
    widened.read(place, [&](const ParamPlace& one, const Tensor& found) {
      source.read(place, [&](const ParamPlace&, const Tensor& wanted) {
        EXPECT_EQ(std::memcmp(found.data, wanted.data, wanted.bytes()), 0) << one.info.name;
      });
    });
  make_model("plain", small_llama(), "llama3");
  refused({"plain", "--format", "gguf", "--dtype", "mxfp4", "--output", "no.gguf"},
          {"--dtype mxfp4", "experts", "q8_0"});
}

TEST_F(Exporting, TheFilesOfAHuggingFaceFolder) {
  const fs::path source = make_model("source", small_gpt2(), "qwen2"), out = folder / "out";
  const ProcessResult result = exported("source", "hf", "out");
  EXPECT_NE(
      result.out.find("export: wrote out: GPT-2, parameters 149,248, fp32, tensors 28, files 6, bytes "),
      std::string::npos)
      << result.out;
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(out)) files.insert(entry.path().filename());
  EXPECT_EQ(files,
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                   "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(read_file(out / "tokenizer.json"), read_file(source / "tokenizer.json"));
  const json config = json::parse(read_file(out / "config.json")),
             tokenizer = json::parse(read_file(out / "tokenizer_config.json"));
  EXPECT_EQ(config["eos_token_id"], 0);  // the tokenizer's end of text, not the last id
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(tokenizer["eos_token"], "<|endoftext|>");
  EXPECT_NE(tokenizer["chat_template"].get<std::string>().find("<|im_start|>"), std::string::npos);
  EXPECT_EQ(json::parse(read_file(out / "generation_config.json")),
            (json{{"bos_token_id", 0}, {"eos_token_id", 0}}));
}

TEST_F(Exporting, FilesOfTheFolderStayAsTheyAre) {
  const fs::path source = make_model("source", small_llama(), "llama3");
  json config = json::parse(read_file(source / "config.json"));
  config["eos_token_id"] = {700, 701};
  config["bos_token_id"] = 5;
  write_fields(source, config);
  const std::string own = "{\"tokenizer_class\": \"Own\", \"chat_template\": \"{{ 1 }}\"}";
  write("source/tokenizer_config.json", own);
  write("source/generation_config.json", "{\"top_p\": 0.5}");
  write("source/merges.txt", "#version: 0.2\n");
  exported("source", "hf", "out");
  EXPECT_EQ(read_file(folder / "out/tokenizer_config.json"), own);
  EXPECT_EQ(read_file(folder / "out/generation_config.json"), "{\"top_p\": 0.5}");
  EXPECT_EQ(read_file(folder / "out/merges.txt"), "#version: 0.2\n");
  const json made = json::parse(read_file(folder / "out/config.json"));
  EXPECT_EQ(made["eos_token_id"], (json{700, 701}));
  EXPECT_EQ(made["bos_token_id"], 5);
}

TEST_F(Exporting, AnExportOfAnExportIsTheSame) {
  make_model("source", small_llama(), "llama3");
  exported("source", "hf", "one", {"--dtype", "bf16"});
  exported("one", "hf", "two");
  for (const auto& entry : fs::directory_iterator(folder / "one"))
    EXPECT_EQ(read_file(entry.path()), read_file(folder / "two" / entry.path().filename())) << entry.path();
  exported("source", "gguf", "a.gguf");
  exported("source", "gguf", "b.gguf");
  EXPECT_EQ(read_file(folder / "a.gguf"), read_file(folder / "b.gguf"));
}

// A model of bytes, as the quickstart's, has no tokenizer in its folder.
TEST_F(Exporting, AModelOfBytes) {
  ModelConfig model = small_gpt2();
  model.vocab_size = 257;
  make_model("bytes", model, "");
  const ProcessResult result = exported("bytes", "hf", "out");
  EXPECT_NE(result.error.find("byte-level BPE without merges"), std::string::npos) << result.error;
  EXPECT_EQ(load_tokenizer((folder / "out").string())->encode("a\r\n\u00e9"),
            (std::vector<int32_t>{'a', '\r', '\n', 0xC3, 0xA9}));
  EXPECT_EQ(json::parse(read_file(folder / "out/config.json"))["eos_token_id"], 256);
  EXPECT_EQ(json::parse(read_file(folder / "out/tokenizer_config.json"))["eos_token"], "<|endoftext|>");
  exported("bytes", "gguf", "out.gguf");
  exported("out", "gguf", "again.gguf");
  const GgufReader file(folder / "out.gguf"), again(folder / "again.gguf");
  const auto tokens = std::get<std::vector<std::string>>(file.fields().at("tokenizer.ggml.tokens"));
  EXPECT_EQ(tokens.size(), 257u);
  EXPECT_EQ(tokens['a'], "a");
  EXPECT_EQ(tokens[256], "<|endoftext|>");
  EXPECT_TRUE(std::get<std::vector<std::string>>(file.fields().at("tokenizer.ggml.merges")).empty());
  EXPECT_EQ(std::get<uint32_t>(file.fields().at("tokenizer.ggml.eos_token_id")), 256u);
  EXPECT_EQ(again.fields().at("tokenizer.ggml.tokens"), file.fields().at("tokenizer.ggml.tokens"));
}

TEST_F(Exporting, SeveralFiles) {
  const fs::path source = make_model("source", small_gpt2(), "gpt2");
  exported("source", "hf", "out", {"--shard-size", "100KB"});
  EXPECT_TRUE(fs::exists(folder / "out/model.safetensors.index.json"));
  const auto files = std::ranges::count_if(fs::directory_iterator(folder / "out"), [](const auto& entry) {
    return entry.path().filename().string().starts_with("model-0000");
  });
  EXPECT_GE(files, 6) << "600 KB, one tensor of 180 KB";
  expect_weights(folder / "out", source, NumberFormat::kF32);
  exported("out", "gguf", "from_several.gguf");
  exported("source", "hf", "out", {"--force"});  // the several files are gone
  EXPECT_FALSE(fs::exists(folder / "out/model.safetensors.index.json"));
}

TEST_F(Exporting, ARunItsCheckpointsAndItsDtype) {
  const fs::path run = train({"--set", "checkpoint.dtype=bf16"});
  exported("runs/small", "hf", "newest");
  expect_weights(folder / "newest", run / "checkpoints/step_00000002", NumberFormat::kBF16);
  exported("runs/small/checkpoints/step_00000001/", "hf", "first", {"--dtype", "fp32"});
  expect_weights(folder / "first", run / "checkpoints/step_00000001", NumberFormat::kF32);
  exported("runs/small/checkpoints", "gguf", "newest.gguf");
  const GgufReader file(folder / "newest.gguf");
  EXPECT_EQ(std::get<std::string>(file.fields().at("general.name")), "small");
  EXPECT_EQ(std::get<uint32_t>(file.fields().at("tokenizer.ggml.eos_token_id")), 0u);
  EXPECT_EQ(std::get<bool>(file.fields().at("tokenizer.ggml.add_bos_token")), false);
  exported("runs/small", "llm.c", "newest.bin");
  EXPECT_NO_THROW(
      LlmCReader(folder / "newest.bin", read_model_config(folder / "newest").model, NumberFormat::kBF16));
}

TEST_F(Exporting, DamageAndUnfinishedCheckpointsAreRefused) {
  const fs::path run = train();
  const fs::path last = run / "checkpoints/step_00000002";
  std::fstream file(last / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-3, std::ios::end);
  file.put('!');
  file.close();
  refused({"runs/small", "--format", "hf", "--output", "out"},
          {"step_00000002/model.safetensors is damaged", "step_00000001 is whole"});
  fs::rename(last, run / "checkpoints/step_00000002.unfinished");
  refused({"runs/small/checkpoints/step_00000002.unfinished", "--format", "hf", "--output", "out"},
          {"being written"});
  exported("runs/small", "hf", "out");
  fs::remove_all(run / "checkpoints/step_00000001");
  refused({"runs/small", "--format", "hf", "--output", "out2"}, {"no finished checkpoint"});
}

TEST_F(Exporting, ARunThatIsTrainingIsNamed) {
  const fs::path run = train();
  const RunLock lock(run);
  const ProcessResult result = exported("runs/small", "hf", "out");
  EXPECT_NE(result.error.find(fmt::format("runs/small (process {} on", getpid())), std::string::npos)
      << result.error;
  EXPECT_NE(result.error.find("its newest checkpoint, step_00000002"), std::string::npos);
}

// Another process replaces the checkpoints all the time, as a run with checkpoint.keep=1 does.
TEST_F(Exporting, CheckpointsThatAreRemovedMeanwhile) {
  const fs::path run = train();
  const fs::path checkpoints = run / "checkpoints";
  fs::rename(checkpoints / "step_00000002", folder / "kept");
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    while (!stop) {
      fs::copy(folder / "kept", checkpoints / "step_00000002.unfinished");
      fs::rename(checkpoints / "step_00000002.unfinished", checkpoints / "step_00000002");
      fs::rename(checkpoints / "step_00000002", checkpoints / "step_00000002.removed.unfinished");
      fs::remove_all(checkpoints / "step_00000002.removed.unfinished");
    }
  });
  for (int i = 0; i < 10; ++i) {
    const ProcessResult result =
        run_export({"runs/small", "--format", "hf", "--output", fmt::format("out{}", i)});
    if (result.status == 0) {
      EXPECT_NO_THROW(read_model_config(folder / fmt::format("out{}", i)));
    } else {
      EXPECT_EQ(result.status, 1);
      EXPECT_NE(result.error.find("was removed while"), std::string::npos) << result.error;
      EXPECT_NE(result.error.find("checkpoint.keep"), std::string::npos) << result.error;
      EXPECT_FALSE(fs::exists(folder / fmt::format("out{}", i)));
    }
  }
  stop = true;
  writer.join();
}

TEST_F(Exporting, WrongInputsAreRefused) {
  make_model("gpt2", small_gpt2(), "gpt2");
  make_model("bare", small_gpt2(), "");
  make_model("llama", small_llama(), "llama3");
  ModelConfig relu = small_gpt2();
  relu.mlp = Mlp::kRelu;
  make_model("relu", relu, "gpt2");
  ModelConfig sparse = small_gpt2();
  sparse.sparse = read_sparse("window:2+global:1");
  make_model("sparse", sparse, "gpt2");
  ModelConfig small = small_gpt2();
  small.vocab_size = 600;
  make_model("small", small, "gpt2");
  fs::create_directories(folder / "empty");
  write("a_file", "x");
  const auto wrong = [&](const std::string& model, const std::string& format, const std::string& output,
                         std::initializer_list<const char*> parts, std::vector<std::string> more = {}) {
    SCOPED_TRACE(*parts.begin());
    more.insert(more.begin(), {model, "--format", format, "--output", output});
    refused(more, parts);
  };
  wrong("absent", "hf", "out", {"no folder absent", "of a run"});
  wrong("empty", "hf", "out", {"empty has no config.json"});
  wrong("gpt2", "hf", "a_file", {"a_file exists and is not a folder"});
  wrong("gpt2", "hf", "empty", {"empty exists", "--force"});
  wrong("gpt2", "hf", "gpt2/out", {"overlap"}, {"--force"});
  wrong("gpt2", "hf", "gpt2", {"overlap"}, {"--force"});
  wrong("gpt2", "gguf", "empty", {"empty is a folder"});
  wrong("gpt2", "gguf", "a_file", {"a_file exists", "--force"});
  wrong("gpt2", "gguf", "", {"--output", "name"});
  wrong("gpt2", "gguf", "absent/x.gguf", {"absent/x.gguf", "No such file"});
  wrong("gpt2", "hf", "out", {"fp32, fp16 or bf16, found --dtype q8_0"}, {"--dtype", "q8_0"});
  wrong("gpt2", "llm.c", "out", {"fp32 or bf16, found --dtype fp16"}, {"--dtype", "fp16"});
  wrong("gpt2", "hf", "out", {"--dtype", "fp64"}, {"--dtype", "fp64"});
  wrong("gpt2", "hf", "out", {"--shard-size"}, {"--shard-size", "0"});
  wrong("gpt2", "gguf", "out", {"--shard-size is of --format hf"}, {"--shard-size", "5GB"});
  wrong("bare", "gguf", "out", {"GGUF", "tokenizer", "--tokenizer PATH"});
  small.vocab_size = 200;
  make_model("letters", small, "");
  wrong("letters", "gguf", "out", {"257 ids", "only 200"}, {"--tokenizer", "bytes"});
  wrong("absent", "hf", "out", {"fp32, fp16 or bf16, found --dtype q8_0"}, {"--dtype", "q8_0"});
  wrong("absent", "peft", "out", {"writes no tokenizer"}, {"--tokenizer", "bytes"});
  wrong("relu", "gguf", "out", {"relu has model.mlp=relu", "--format hf"});
  wrong("relu", "llm.c", "out", {"relu has model.mlp=relu"});
  for (const char* format : {"hf", "gguf", "llm.c"})
    wrong("sparse", format, "out", {"sparse has model.sparse=window:2+global:1", "model.sparse=full"});
  ModelConfig bloom = small_gpt2();
  bloom.positions = Positions::kAlibi, bloom.norm_embeddings = true;
  make_model("bloom", bloom, "gpt2");
  wrong("bloom", "gguf", "out", {"bloom has parts", "model_type bloom", "--format hf"});
  wrong("llama", "llm.c", "out", {"llama is a Llama", "GPT-2 alone"});
  for (const char* file : {"generation_config.json", "special_tokens_map.json", "tokenizer.json"}) {
    write(std::string("bare/") + file, "{\n\"a\": ");
    wrong("bare", "hf", "out", {file, ":2:", "not JSON"});
    fs::remove(folder / "bare" / file);
  }
  wrong("small", "hf", "out", {"704 ids", "only 600"});
  wrong("small", "gguf", "out", {"704 ids", "only 600"});
  EXPECT_EQ(read_file(folder / "a_file"), "x");
}

TEST_F(Exporting, ATokenizerThatIsNotInTheFolder) {
  make_model("bare", small_gpt2(), "");
  const std::string tokenizer = tokenizer_fixture("smollm2.json");
  exported("bare", "gguf", "out.gguf", {"--tokenizer", tokenizer});
  EXPECT_EQ(std::get<std::string>(GgufReader(folder / "out.gguf").fields().at("tokenizer.ggml.pre")),
            "smollm");
  exported("bare", "hf", "out", {"--tokenizer", tokenizer});
  EXPECT_EQ(read_file(folder / "out/tokenizer.json"), read_file(tokenizer));
  const ProcessResult none = exported("bare", "hf", "none");
  EXPECT_NE(none.error.find("no tokenizer"), std::string::npos) << none.error;
  EXPECT_FALSE(fs::exists(folder / "none/tokenizer_config.json"));
}

TEST_F(Exporting, ValuesBeyondFp16AreNamed) {
  const fs::path source = make_model("large", small_gpt2(), "gpt2");
  std::vector<FolderTensor> tensors = random_tensors(small_gpt2());
  tensor_of(tensors, "transformer.h.1.mlp.c_fc.weight").values[5] = 70000;
  write_tensors(source / "model.safetensors", tensors);
  refused({"large", "--format", "hf", "--output", "out", "--dtype", "fp16"},
          {"transformer.h.1.mlp.c_fc.weight: its value 5 is 70000", "fp16", "--dtype bf16"});
  refused({"large", "--format", "gguf", "--output", "out.gguf", "--dtype", "f16"},
          {"blk.1.ffn_up.weight", "too large for fp16"});
  exported("large", "hf", "out", {"--dtype", "bf16"});
  exported("large", "gguf", "out.gguf", {"--dtype", "q8_0"});
}

TEST_F(Exporting, OnlyAnExportIsReplaced) {
  make_model("source", small_gpt2(), "gpt2");
  exported("source", "hf", "out");
  write("out/notes.txt", "mine");
  refused({"source", "--format", "hf", "--output", "out", "--force"}, {"out is not replaced", "notes.txt"});
  EXPECT_EQ(read_file(folder / "out/notes.txt"), "mine");
  fs::remove(folder / "out/notes.txt");
  exported("source", "hf", "out", {"--force", "--dtype", "bf16"});
  EXPECT_EQ(json::parse(read_file(folder / "out/config.json"))["torch_dtype"], "bfloat16");
  write("notes.txt", "mine");
  for (const char* format : {"gguf", "llm.c"}) {
    refused({"source", "--format", format, "--output", "notes.txt", "--force"},
            {"notes.txt is not replaced"});
    for (const char* before : {"gguf", "llm.c"}) {
      exported("source", before, "out.bin", {"--force"});
      exported("source", format, "out.bin", {"--force"});
    }
  }
  EXPECT_EQ(read_file(folder / "notes.txt"), "mine");
}

TEST_F(Exporting, AFullDiskLeavesNothing) {
  make_model("source", small_gpt2(), "gpt2");
  exported("source", "hf", "old");
  const std::string before = read_file(folder / "old/model.safetensors");
  for (const rlim_t bytes : {5000, 100'000, 300'000}) {
    refused({"source", "--format", "hf", "--output", "out"}, {"cannot write", "File too large"}, bytes);
    refused({"source", "--format", "hf", "--output", "old", "--force"}, {"File too large"}, bytes);
    refused({"source", "--format", "gguf", "--output", "out.gguf"}, {"out.gguf", "File too large"}, bytes);
    refused({"source", "--format", "llm.c", "--output", "out.bin"}, {"out.bin", "File too large"}, bytes);
  }
  EXPECT_EQ(read_file(folder / "old/model.safetensors"), before);
}

// Killed at some moment of the work: the output is whole or absent, and the next export succeeds.
TEST_F(Exporting, AKilledExportLeavesATemporaryAlone) {
  make_model("source", large_gpt2(), "gpt2");
  int killed = 0, left = 0;
  for (int i = 0; i < 6; ++i)
    for (const std::string format : {"hf", "gguf", "llm.c"}) {
      const std::string output = "out_" + format;
      Process process(EXPORT_BINARY, {"source", "--format", format, "--output", output}, {.folder = folder});
      std::this_thread::sleep_for(std::chrono::milliseconds(10 + 30 * i));
      process.signal(SIGKILL);
      killed += process.finish().status < 0;
      const std::set<std::string> found = names();
      left += found.size() > 1 && !found.contains(output);
      for (const std::string& name : found)
        EXPECT_TRUE(name == "source" || name == output || name == output + ".tmp" ||
                    name.starts_with("." + output + ".preparing-"))
            << name;
      const ProcessResult next = exported("source", format, output, {"--force"});
      if (format == "hf" && names().size() > 2) {
        EXPECT_NE(next.error.find("rm -r"), std::string::npos) << next.error;
      }
      EXPECT_FALSE(fs::exists(folder / (output + ".tmp"))) << "the next export takes its name";
      for (const std::string& name : names())
        if (name != "source") fs::remove_all(folder / name);
    }
  EXPECT_GT(killed, 3);
  EXPECT_GT(left, 1) << "too few were killed while they wrote";
}

TEST_F(Exporting, ASignalLeavesNothing) {
  make_model("source", large_gpt2(), "gpt2");
  int stopped = 0;
  for (int i = 0; i < 8; ++i) {
    Process process(EXPORT_BINARY, {"source", "--format", "hf", "--output", "out"}, {.folder = folder});
    std::this_thread::sleep_for(std::chrono::milliseconds(40 + 30 * i));
    process.signal(SIGTERM);
    const ProcessResult result = process.finish();
    if (result.status == 1) {
      EXPECT_NE(result.error.find("stopped by a signal"), std::string::npos) << result.error;
      EXPECT_EQ(names(), (std::set<std::string>{"source"}));
      ++stopped;
    }
    fs::remove_all(folder / "out");
  }
  EXPECT_GT(stopped, 2);
}

}  // namespace
}  // namespace tessera::testing
