#include "kernels/gemm/table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using nlohmann::json, nlohmann::ordered_json;

constexpr const char* kFile = "Tessera's matrix products";  // old files have it, so it stays
constexpr int64_t kVersion = 1;
constexpr int kFp32Reduction = 2;  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE

constexpr std::pair<const char*, int GemmAlgorithm::*> kAttributes[] = {
    {"id", &GemmAlgorithm::id},
    {"tile", &GemmAlgorithm::tile},
    {"stages", &GemmAlgorithm::stages},
    {"split_k", &GemmAlgorithm::split_k},
    {"reduction", &GemmAlgorithm::reduction},
    {"swizzle", &GemmAlgorithm::swizzle},
    {"custom", &GemmAlgorithm::custom},
    {"inner_shape", &GemmAlgorithm::inner_shape},
    {"cluster_shape", &GemmAlgorithm::cluster_shape}};

// Elements of a stored row without padding
int64_t row_of(const GemmKey::Matrix& matrix, int64_t rows, int64_t columns) {
  return matrix.transposed ? rows : columns;
}

ordered_json matrix_json(const GemmKey::Matrix& matrix, int64_t rows, int64_t columns) {
  ordered_json object{{"dtype", name_of(matrix.dtype)}};
  if (matrix.transposed) object["transposed"] = true;
  if (matrix.ld != row_of(matrix, rows, columns)) object["ld"] = matrix.ld;
  if (matrix.batch_stride != 0) object["batch_stride"] = matrix.batch_stride;
  if (matrix.alignment != kFullAlignment) object["alignment"] = matrix.alignment;
  return object;
}

double rounded(double ms) { return std::round(ms * 1e5) / 1e5; }

std::string line_of(const GemmKey& key, const GemmChoice& choice) {
  ordered_json line{{"m", key.m}, {"n", key.n}, {"k", key.k}};
  line["a"] = matrix_json(key.a, key.m, key.k);
  line["b"] = matrix_json(key.b, key.k, key.n);
  line["d"] = matrix_json(key.d, key.m, key.n);
  if (key.batch != 1) line["batch"] = key.batch;
  if (key.epilogue != GemmEpilogue::kNone) line["epilogue"] = word_of(key.epilogue, key.activation);
  if (key.adds) line["adds"] = true;
  if (key.summed > 0) line["summed"] = key.summed;
  for (const auto& [name, member] : kAttributes) line["algorithm"][name] = choice.algorithm.*member;
  line["ms"] = rounded(choice.ms);
  line["first_ms"] = rounded(choice.first_ms);
  return line.dump() + "\n";
}

// An object of a line. Every field of it has to be read.
class Fields {
 public:
  Fields(const json& object, std::string name) : object_(object), name_(std::move(name)) {
    check(object.is_object(), "{}: expected an object in braces, found {}", name_, brief(object));
  }

  int64_t whole(const std::string& key, int64_t at_least, int64_t at_most = int64_t{1} << 40) {
    known_.push_back(key);
    return whole_number(object_, key, name_, at_least, at_most);
  }
  int64_t whole_or(const std::string& key, int64_t usual, int64_t at_least) {
    return has(key) ? whole(key, at_least) : usual;
  }
  std::string text(const std::string& key) {
    known_.push_back(key);
    return text_value(object_, key, name_);
  }
  template <HasWords E>
  E word(const std::string& key) {
    const std::string word = text(key);
    if (const auto value = from_word<E>(word)) return *value;
    constexpr auto values = values_with_words<E>();
    fail("{}: {}", name_, unknown_word(key, word, names_of<E>(values)));
  }
  std::pair<GemmEpilogue, Activation> epilogue(const std::string& key) {
    if (!has(key)) return {};
    const std::string word = text(key);
    std::vector<std::string> words;
    for (const GemmEpilogue epilogue : kGemmEpilogues)
      for (const Activation activation : kActivations) {
        if (!has_aux(epilogue) && activation != Activation::kGelu) continue;
        words.push_back(word_of(epilogue, activation));
        if (words.back() == word) return {epilogue, activation};
      }
    fail("{}: {}", name_, unknown_word(key, word, {words.begin(), words.end()}));
  }
  bool flag(const std::string& key) {
    if (!has(key)) return false;
    known_.push_back(key);
    check(object_[key].is_boolean(), "{}: \"{}\" must be true or false, found {}", name_, key,
          brief(object_[key]));
    return object_[key].get<bool>();
  }
  double milliseconds(const std::string& key) {
    known_.push_back(key);
    constexpr double kMost = 1e9;
    const double ms = has(key) && object_[key].is_number() ? object_[key].get<double>() : -1;
    check(ms >= 0 && ms <= kMost, "{}: \"{}\" must be a number of milliseconds, found {}", name_, key,
          has(key) ? brief(object_[key]) : "nothing");
    return ms;
  }
  Fields inner(const std::string& key) {
    known_.push_back(key);
    check(has(key), "{}: \"{}\" is missing", name_, key);
    return {object_[key], fmt::format("{}: \"{}\"", name_, key)};
  }
  bool has(const std::string& key) const { return object_.contains(key); }
  const std::string& name() const { return name_; }
  void end() const {
    const std::vector<std::string_view> known(known_.begin(), known_.end());
    for (const auto& [key, value] : object_.items())
      check(std::find(known_.begin(), known_.end(), key) != known_.end(), "{}: {}", name_,
            unknown_word("field", key, known));
  }

 private:
  const json& object_;
  std::string name_;  // file:line, and the object within
  std::vector<std::string> known_;
};

GemmPlatform parse_header(const json& line, const std::string& name) {
  Fields fields(line, name);
  const std::string file = fields.text("file");
  check(file == kFile, "{}: expected a file of {}, found {}", name, in_quotes(kFile), in_quotes(file));
  const int64_t version = fields.whole("version", 1);
  check(version == kVersion,
        "{}: this program reads version {}, found {}; remove the file, and GEMMs are timed anew", name,
        kVersion, version);
  GemmPlatform platform{.device = fields.text("device"),
                        .cublaslt = fields.whole("cublaslt", 1),
                        .cudart = fields.whole("cudart", 1)};
  fields.end();
  return platform;
}

GemmKey::Matrix parse_matrix(Fields fields, int64_t rows, int64_t columns) {
  GemmKey::Matrix matrix{.dtype = fields.word<DType>("dtype"),
                         .transposed = fields.flag("transposed"),
                         .ld = 0,
                         .batch_stride = fields.whole_or("batch_stride", 0, 1),
                         .alignment = fields.whole_or("alignment", kFullAlignment, 1)};
  const int64_t row = row_of(matrix, rows, columns);
  matrix.ld = fields.whole_or("ld", row, row);
  const int64_t a = matrix.alignment;
  check(a <= kFullAlignment && (a & (a - 1)) == 0, "{}: \"alignment\" must be 1, 2, 4, 8 or 16, found {}",
        fields.name(), a);
  fields.end();
  return matrix;
}

GemmAlgorithm parse_algorithm(Fields fields) {
  GemmAlgorithm algorithm;
  for (const auto& [name, member] : kAttributes)
    algorithm.*member = static_cast<int>(fields.whole(name, 0, INT32_MAX));
  fields.end();
  check(algorithm.split_k <= 1 || algorithm.reduction == kFp32Reduction,
        "{}: partial sums must be added in fp32: with split_k {}, \"reduction\" must be {}, found {}",
        fields.name(), algorithm.split_k, kFp32Reduction, algorithm.reduction);
  return algorithm;
}

std::pair<GemmKey, GemmChoice> parse_line(const json& line, const std::string& name) {
  Fields fields(line, name);
  constexpr int64_t kLargest = INT32_MAX;
  const int64_t m = fields.whole("m", 1, kLargest), n = fields.whole("n", 1, kLargest),
                k = fields.whole("k", 1, kLargest);
  const auto [epilogue, activation] = fields.epilogue("epilogue");
  const GemmKey key{.m = m,
                    .n = n,
                    .k = k,
                    .a = parse_matrix(fields.inner("a"), m, k),
                    .b = parse_matrix(fields.inner("b"), k, n),
                    .d = parse_matrix(fields.inner("d"), m, n),
                    .batch = fields.has("batch") ? static_cast<int>(fields.whole("batch", 2, kLargest)) : 1,
                    .epilogue = epilogue,
                    .activation = activation,
                    .adds = fields.flag("adds"),
                    .summed = fields.has("summed") ? fields.whole("summed", 1, m) : 0};
  check(key.summed == 0 || key.a.transposed, "{}: with \"summed\", \"a\" must be transposed", name);
  const GemmChoice choice{.algorithm = parse_algorithm(fields.inner("algorithm")),
                          .ms = fields.milliseconds("ms"),
                          .first_ms = fields.milliseconds("first_ms")};
  fields.end();
  return {key, choice};
}

}  // namespace

std::string text_of(const GemmTable& table) {
  const ordered_json header{{"file", kFile},
                            {"version", kVersion},
                            {"device", table.platform.device},
                            {"cublaslt", table.platform.cublaslt},
                            {"cudart", table.platform.cudart}};
  std::string text = header.dump() + "\n";
  for (const auto& [key, choice] : table.choices) text += line_of(key, choice);
  return text;
}

GemmTable parse_gemm_table(std::string_view text, const std::string& name) {
  GemmTable table;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const json line = parse_json(text.substr(begin, end - begin), name, {.first_line = ++number});
    const std::string place = fmt::format("{}:{}", name, number);
    if (number == 1) {
      table.platform = parse_header(line, place);
    } else {
      const auto [key, choice] = parse_line(line, place);
      check(table.choices.emplace(key, choice).second, "{}: the GEMM {} is listed a second time", place,
            describe(key));
    }
    begin = end + 1;
  }
  check(number > 0, "{}:1: the file is empty; remove it, and GEMMs are timed anew", name);
  return table;
}

GemmTable read_gemm_table(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return parse_gemm_table({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

std::string table_file_name(const GemmPlatform& platform) {
  std::string name;
  for (const char c : platform.device) {
    const bool letter = ('a' <= c && c <= 'z') || ('0' <= c && c <= '9');
    const bool capital = 'A' <= c && c <= 'Z';
    name += letter ? c : capital ? static_cast<char>(c - 'A' + 'a') : '_';
  }
  return fmt::format("{}-{}-{}.jsonl", name, platform.cublaslt, platform.cudart);
}

}  // namespace tessera
