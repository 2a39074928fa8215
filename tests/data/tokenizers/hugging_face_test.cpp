// Hugging Face's `tokenizers` itself, from the Python that TESSERA_PYTHON names (pip install tokenizers).
#include <nlohmann/json.hpp>

#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/bpe_trainer.h"
#include "tests/data/tokenizers/support.h"
#include "tests/python.h"
#include "tests/shared_data.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class HuggingFace : public InTempFolder {
 protected:
  void SetUp() override {
    if (const auto missing = testing::missing_in_python("tokenizers", folder_); !missing.empty())
      GTEST_SKIP() << missing;
  }

  testing::ProcessResult run(std::vector<std::string> arguments) const {
    return testing::run_process(testing::python_program(), arguments, {.folder = folder_});
  }
  std::string script() const {
    return std::string(TESSERA_SOURCE_DIR) + "/tests/data/tokenizers/encode_with_hugging_face.py";
  }

  // Shakespeare, where it is; the project's sources; the hard strings; a MB without a blank.
  std::vector<fs::path> texts() const {
    const fs::path root = TESSERA_SOURCE_DIR;
    std::vector<fs::path> sources;
    for (const char* room : {"kernels", "model", "data", "train", "tests", "docs"})
      for (const auto& entry : fs::recursive_directory_iterator(root / room))
        for (const char* kind : {".h", ".cpp", ".cu", ".cuh", ".py", ".md"})
          if (entry.path().extension() == kind) sources.push_back(entry.path());
    std::ranges::sort(sources);
    std::string all, hard, unbroken;
    for (const fs::path& source : sources) all += read_file(source);
    for (const std::string part : json::parse(read_file(tokenizer_fixture("strings.json")))) hard += part;
    for (uint32_t i = 0; unbroken.size() < 1'000'000; ++i)
      unbroken += static_cast<char>('a' + i * i / 3 % 26);
    std::vector<fs::path> made{write("sources.txt", all), write("hard.txt", hard),
                               write("unbroken.txt", unbroken)};
    const auto shakespeare = testing::shared_data("tinyshakespeare.txt");
    if (shakespeare.missing.empty()) made.push_back(shakespeare.path);
    return made;
  }

  // `files`: tokenizer.json or a folder of GPT-2's
  void expect_same_ids(const std::vector<fs::path>& files) const {
    json jobs = json::array();
    for (const fs::path& file : files)
      for (const fs::path& text : texts())
        for (const bool special : {false, true}) {
          if (special && text.filename() != "hard.txt") continue;  // which has them all
          jobs.push_back({{"tokenizer", file.string()},
                          {"text", text.string()},
                          {"special", special},
                          {"out", (folder_ / fmt::format("{}.ids", jobs.size())).string()}});
        }
    const auto result = run({script(), write("jobs.json", jobs.dump()).string()});
    ASSERT_EQ(result.status, 0) << result.error;
    for (const json& job : jobs) {
      const auto tokenizer = load_tokenizer(job["tokenizer"]);
      std::istringstream out(read_file(job["out"].get<std::string>()));
      const std::vector<int32_t> wanted{std::istream_iterator<int32_t>(out), {}};
      const auto special = job["special"] ? SpecialTokens::kMatched : SpecialTokens::kAsText;
      const auto found = tokenizer->encode(read_file(job["text"].get<std::string>()), special);
      EXPECT_GT(wanted.size(), 500u);
      EXPECT_TRUE(found == wanted) << job.dump() << ": " << found.size() << " ids, wanted " << wanted.size()
                                   << "; the first difference is at "
                                   << std::ranges::mismatch(found, wanted).in1 - found.begin();
    }
  }
};

TEST_F(HuggingFace, IdsOfItsOwnTokenizers) {
  std::vector<fs::path> files;
  for (const std::string& kind : all_fixture_kinds()) files.push_back(tokenizer_fixture(kind + ".json"));
  expect_same_ids(files);
}

TEST_F(HuggingFace, IdsOfItsOwnTokenizersOfCharacters) {
  std::vector<fs::path> files;
  for (const std::string& kind : character_fixture_kinds())
    files.push_back(tokenizer_fixture(kind + ".json"));
  expect_same_ids(files);
}

TEST_F(HuggingFace, IdsOfMistral) {
  const auto shared = testing::shared_data("tokenizers/mistral_v1/tokenizer.json");
  if (!shared.missing.empty()) GTEST_SKIP() << shared.missing;
  expect_same_ids({shared.path});
}

TEST_F(HuggingFace, IdsOfGpt2) {
  const auto shared = testing::shared_data("gpt2/vocab.bpe");
  if (!shared.missing.empty()) GTEST_SKIP() << shared.missing;
  // The tokenizer.json that is written for OpenAI's files, too
  const auto written = write("gpt2.json", load_tokenizer(shared.path.parent_path().string())->json());
  expect_same_ids({shared.path.parent_path(), written});
}

TEST_F(HuggingFace, IdsOfTrainedTokenizers) {
  std::vector<fs::path> files;
  for (const PreTokenizerKind kind : values_with_words<PreTokenizerKind>()) {
    PieceCounts counts(kind);
    for (const fs::path& text : texts())
      if (text.filename() != "unbroken.txt") counts.add(read_file(text));
    const auto made =
        train_bpe(counts.counts(), {.kind = kind, .vocab_size = 2000, .special = {"<|endoftext|>"}});
    files.push_back(
        write(fmt::format("{}.json", name_of(kind)), make_bpe_tokenizer(made, 0, "", "made")->json()));
  }
  expect_same_ids(files);
}

// The same tokens and the same merges as its BpeTrainer learns
TEST_F(HuggingFace, LearnsTheSameMerges) {
  for (const fs::path& text : texts()) {
    if (text.filename() == "unbroken.txt") continue;  // one piece: an exercise in time
    const auto result = run({script(), "--train", text.string(), "3000", (folder_ / "theirs.json").string()});
    ASSERT_EQ(result.status, 0) << result.error;
    PieceCounts counts(PreTokenizerKind::kGpt2);
    counts.add(read_file(text));
    const auto ours = train_bpe(counts.counts(), {.vocab_size = 3000, .special = {"<|endoftext|>"}});
    EXPECT_EQ(make_bpe_tokenizer(ours, 0, "", "ours")->name(),
              load_tokenizer((folder_ / "theirs.json").string())->name())
        << text;
  }
}

}  // namespace
}  // namespace tessera
