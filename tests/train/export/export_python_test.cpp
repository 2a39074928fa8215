// Exports, read by the programs that they are for, in the Python that TESSERA_PYTHON names.
#include "tests/python.h"
#include "tests/tolerances.h"
#include "tests/train/export/export_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

class ExportInPython : public ExportProgram {
 protected:
  void passes(const char* script, std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), std::string(TESSERA_SOURCE_DIR "/tests/train/export/") + script);
    const ProcessResult result = run_process(python_program(), arguments, {.folder = folder});
    EXPECT_EQ(result.status, 0) << result.out << result.error;
  }
};

std::string pre_tokenizer_of(const SmallModel& model) {
  const std::map<std::string, std::string> names{
      {"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"smollm2", "smollm"}};
  return names.at(model.tokenizer);
}

// llama.cpp's own reader, names and rounding
TEST_F(ExportInPython, GgufReadsTheFile) {
  if (const auto missing = missing_in_python("gguf, numpy, safetensors", folder); !missing.empty())
    GTEST_SKIP() << missing;
  for (const SmallModel& one : small_models()) {
    make_model(one.name, one.model, one.tokenizer);
    for (const char* format : {"f32", "f16", "bf16", "q8_0"}) {
      SCOPED_TRACE(one.name + " " + format);
      exported(one.name, "gguf", "out.gguf", {"--dtype", format, "--force"});
      passes("check_gguf.py", {"out.gguf", one.name, format, pre_tokenizer_of(one)});
    }
  }
}

// Without --dtype the experts of gpt-oss stay in MXFP4.
TEST_F(ExportInPython, GgufKeepsMxfp4) {
  if (const auto missing = missing_in_python("gguf, numpy, safetensors", folder); !missing.empty())
    GTEST_SKIP() << missing;
  make_mxfp4_model("gpt_oss");
  const ProcessResult result = exported("gpt_oss", "gguf", "out.gguf");
  EXPECT_NE(result.out.find("mxfp4"), std::string::npos) << result.out;
  passes("check_mxfp4_gguf.py", {"out.gguf", "gpt_oss"});
}

TEST_F(ExportInPython, LlamaCppComputesTheSame) {
  if (const auto missing = missing_in_python("xllamacpp, torch, transformers", folder); !missing.empty())
    GTEST_SKIP() << missing;
  std::vector<std::string> arguments{fmt::format("{}", tolerance::kLlamaCpp)};
  for (const SmallModel& one : small_models()) {
    make_model(one.name, one.model, one.tokenizer);
    exported(one.name, "gguf", one.name + ".gguf", {"--dtype", "f32"});
    arguments.insert(arguments.end(), {one.name + ".gguf", one.name});
  }
  passes("check_llama_cpp.py", arguments);
}

TEST_F(ExportInPython, LlamaCppMergesRunsOfBlanks) {
  if (const auto missing = missing_in_python("xllamacpp", folder); !missing.empty()) GTEST_SKIP() << missing;
  for (const std::string name : {"tied_llama", "tied_gemma"}) {
    make_model(name, small_llama(), name);
    exported(name, "gguf", name + ".gguf");
    passes("check_runs_of_blanks.py", {name + ".gguf", tokenizer_fixture("tied_ids.json"), name});
  }
}

TEST_F(ExportInPython, TransformersComputesTheSame) {
  if (const auto missing = missing_in_python("torch, transformers", folder); !missing.empty())
    GTEST_SKIP() << missing;
  for (const SmallModel& one : small_models()) {
    SCOPED_TRACE(one.name);
    make_model(one.name, one.model, one.tokenizer);
    for (const char* format : {"fp32", "fp16", "bf16"}) {
      exported(one.name, "hf", "out", {"--dtype", format, "--shard-size", "100KB", "--force"});
      passes("check_hugging_face.py", {"out", one.name});
    }
  }
}

}  // namespace
}  // namespace tessera::testing
