// Which module may include which, and how long a function, a comment and a line of prose may be: held up by
// reading the sources.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// Which other folders the files of a folder may include. The modules are in the order in which they rest on
// one another: each may include earlier ones alone.
struct Module {
  std::string folder;
  std::vector<std::string> may_include;
};
const std::vector<Module> kModules{
    {"kernels/base", {}},
    {"kernels/hopper", {"kernels/base"}},
    {"kernels/attention", {"kernels/base"}},
    {"kernels/attention/common", {"kernels/base", "kernels/attention"}},
    {"kernels/attention/row", {"kernels/base", "kernels/attention", "kernels/attention/common"}},
    {"kernels/attention/f32", {"kernels/base", "kernels/attention", "kernels/attention/common"}},
    {"kernels/attention/mixture", {"kernels/base", "kernels/attention", "kernels/attention/common"}},
    {"kernels/attention/sm80", {"kernels/base", "kernels/attention", "kernels/attention/common"}},
    {"kernels/attention/decode",
     {"kernels/base", "kernels/attention", "kernels/attention/common", "kernels/attention/sm80"}},
    {"kernels/attention/sm90",
     {"kernels/base", "kernels/hopper", "kernels/attention", "kernels/attention/common"}},
    {"kernels/attention/cudnn", {"kernels/base", "kernels/attention"}},
    {"kernels", {"kernels/base", "kernels/attention"}},
    {"kernels/decode_step", {"kernels/base", "kernels", "kernels/attention"}},
    {"kernels/gemm", {"kernels/base", "kernels"}},
    {"kernels/cpu", {"kernels/base", "kernels", "kernels/attention", "kernels/gemm"}},
    {"kernels/gemm/sm90", {"kernels/base", "kernels/hopper", "kernels", "kernels/gemm"}},
    {"kernels/cuda",
     {"kernels/base", "kernels", "kernels/attention", "kernels/attention/common", "kernels/attention/sm80",
      "kernels/gemm", "kernels/gemm/sm90"}},
    {"kernels/cuda/decode_step",
     {"kernels/base", "kernels/hopper", "kernels", "kernels/decode_step", "kernels/attention",
      "kernels/attention/common", "kernels/attention/decode", "kernels/cuda"}},
    {"model/losses", {"kernels/base", "kernels"}},
    {"model", {"kernels/base", "kernels", "kernels/attention", "model/losses"}},
    {"model/stages", {"kernels", "kernels/base", "model", "model/losses"}},
    {"model/formats", {"kernels/base", "model"}},
    {"data/tokenizers", {"kernels/base"}},
    {"data/chat", {"kernels/base", "data/tokenizers"}},
    {"data", {"kernels/base", "data/tokenizers", "data/chat"}},
    {"train/config", {"kernels/base", "kernels/attention", "model", "model/formats"}},
    {"train/launch", {"kernels/base"}},
    {"train/parallel", {"kernels/base", "kernels", "kernels/cuda"}},
    {"train/session",
     {"kernels/base", "kernels", "kernels/attention", "kernels/gemm", "model/losses", "model",
      "model/formats", "data/tokenizers", "data/chat", "data", "train/config", "train/parallel"}},
    {"train/tasks", {"kernels/base", "data/tokenizers", "data/chat", "data", "train/session"}},
    {"train/plot", {"kernels/base"}},
    {"train/memory",
     {"kernels/base", "kernels", "kernels/attention", "model", "train/config", "train/session"}},
    {"train/report", {"kernels/base", "train/config", "train/plot"}},
    {"train/run",
     {"kernels/base", "kernels", "kernels/gemm", "model", "model/formats", "data/tokenizers", "data/chat",
      "data", "train/config", "train/launch", "train/parallel", "train/session", "train/tasks",
      "train/memory", "train/report"}},
    {"train/bench",
     {"kernels/base", "kernels", "kernels/attention", "kernels/gemm", "model", "model/formats",
      "data/tokenizers", "train/config", "train/launch", "train/session", "train/plot", "train/memory",
      "train/run"}},
    {"train/generate",
     {"kernels/base", "kernels", "model", "model/formats", "data/tokenizers", "data/chat", "data",
      "train/config", "train/session", "train/memory", "train/run"}},
    {"train/evaluate",
     {"kernels/base", "kernels", "model", "model/formats", "data/tokenizers", "data/chat", "data",
      "train/config", "train/launch", "train/session", "train/tasks", "train/run"}},
    {"train/prove",
     {"kernels/base", "kernels", "kernels/attention", "model", "model/formats", "data/tokenizers",
      "data/chat", "data", "train/config", "train/launch", "train/parallel", "train/session", "train/run"}},
    {"train/export",
     {"kernels/base", "kernels", "model", "model/formats", "data/tokenizers", "data/chat", "data",
      "train/session", "train/run"}},
    {"train", {"kernels/base", "train/config", "train/launch", "train/memory", "train/run"}},
};

struct Source {
  std::string path, text;  // path relative to the project
};

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<Source> sources(const std::vector<std::string>& folders = {"kernels", "model", "data", "train"}) {
  std::vector<Source> found;
  const fs::path root = TESSERA_SOURCE_DIR;
  for (const std::string& folder : folders)
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      found.push_back({fs::relative(entry.path(), root).string(), text_of(entry.path())});
    }
  EXPECT_GT(found.size(), 40u);
  return found;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Every source that matches `pattern` must be one of `allowed` (prefixes of paths).
void expect_only_in(const char* pattern, const std::vector<std::string>& allowed) {
  const std::regex expression(pattern);
  for (const Source& source : sources()) {
    if (!std::regex_search(source.text, expression)) continue;
    bool fine = false;
    for (const std::string& prefix : allowed) fine = fine || source.path.starts_with(prefix);
    EXPECT_TRUE(fine) << source.path << " matches " << pattern;
  }
}

TEST(Modules, DeviceMemoryComesFromTheArenaAlone) {
  expect_only_in(R"(\bcuda(Malloc|Free|HostAlloc|HostRegister)\w*\s*\()", {"kernels/base/arena.cpp"});
}

TEST(Modules, InlineAssemblyIsInPtxHeadersAlone) {
  const std::regex assembly(R"(\basm\s*(volatile\s*)?\()");
  for (const Source& source : sources()) {
    if (std::regex_search(source.text, assembly)) {
      EXPECT_TRUE(fs::path(source.path).filename() == "ptx.cuh") << source.path;
    }
  }
}

TEST(Modules, CudaHeadersStayInTheirModules) {
  expect_only_in(R"(#include\s*[<"]cu(da|blas|dnn|b/))",
                 {"kernels/cuda/", "kernels/hopper/", "kernels/gemm/sm90/", "kernels/attention/",
                  "kernels/base/arena.cpp", "train/parallel/nccl_"});
}

TEST(Modules, TheCommunicatorAloneKnowsHowRanksCommunicate) {
  expect_only_in(R"(#include\s*<nccl)", {"train/parallel/nccl_"});
  expect_only_in(R"(#include\s*<gloo/)", {"train/parallel/gloo_communicator.cpp"});
}

// errno is changed by whatever else a message needs: check_system() takes it at once.
TEST(Modules, TheReasonsOfTheSystemComeFromOnePlace) {
  expect_only_in(R"(\bstrerror(_r)?\s*\()", {"kernels/base/system_error.cpp"});
}

// From a node to those that it rests on.
using Graph = std::map<std::string, std::set<std::string>>;

// Headers that take seconds to compile stay out of headers, but for those that hold a JSON value.
TEST(Modules, HeavyHeadersStayOutOfHeaders) {
  const std::set<std::string> with_values{"model/formats/field_values.h", "train/export/source.h",
                                          "train/report/run_record.h", "train/run/kept_files.h"};
  for (const Source& source : sources()) {
    if (!source.path.ends_with(".h") && !source.path.ends_with(".cuh")) continue;
    for (const char* heavy : {"<nlohmann/json.hpp>", "<CLI/CLI.hpp>", "<gloo/"})
      EXPECT_TRUE(source.text.find(heavy) == std::string::npos || with_values.contains(source.path))
          << source.path << " includes " << heavy;
  }
}

// One cycle of the graph as "a -> b -> a", or nothing.
std::string cycle_in(const Graph& graph) {
  std::vector<std::string> path;
  std::set<std::string> done;
  const std::function<std::string(const std::string&)> walk = [&](const std::string& node) -> std::string {
    if (const auto first = std::ranges::find(path, node); first != path.end()) {
      std::string cycle;
      for (auto at = first; at != path.end(); ++at) cycle += *at + " -> ";
      return cycle + node;
    }
    if (!done.insert(node).second || !graph.contains(node)) return "";
    path.push_back(node);
    for (const std::string& next : graph.at(node))
      if (std::string cycle = walk(next); !cycle.empty()) return cycle;
    path.pop_back();
    return "";
  };
  for (const auto& [node, nexts] : graph)
    if (std::string cycle = walk(node); !cycle.empty()) return cycle;
  return "";
}

// model/store is a room of model: the two include each other.
std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder == "model/store" ? "model" : folder;
}

// The project's own files that a source includes.
std::vector<std::string> includes_of(const Source& source) {
  static const std::regex include(R"re((?:^|\n)[ \t]*#[ \t]*include[ \t]*"([^"]+)")re");
  std::vector<std::string> found;
  for (std::sregex_iterator at(source.text.begin(), source.text.end(), include), end; at != end; ++at) {
    const std::string path = (*at)[1];
    if (path.find('/') != std::string::npos) found.push_back(path);  // the others are made by the build
  }
  return found;
}

TEST(Modules, EveryIncludeIsInTheTable) {
  std::map<std::string, std::set<std::string>> allowed;
  for (const Module& module : kModules) {
    for (const std::string& other : module.may_include)
      EXPECT_TRUE(allowed.contains(other))
          << module.folder << " may include " << other << ", which comes after it";
    allowed[module.folder] = {module.may_include.begin(), module.may_include.end()};
  }
  for (const Source& source : sources()) {
    const std::string from = folder_of(source.path);
    EXPECT_TRUE(allowed.contains(from)) << from << " is not in the table of modules";
    for (const std::string& path : includes_of(source)) {
      const std::string to = folder_of(path);
      EXPECT_TRUE(from == to || allowed[from].contains(to)) << source.path << " includes " << path;
    }
  }
}

// A header and the file of its definitions are one.
TEST(Modules, FilesHaveNoCycle) {
  Graph graph;
  for (const Source& source : sources()) {
    const std::string from = fs::path(source.path).replace_extension().string();
    for (const std::string& path : includes_of(source)) {
      const std::string to = fs::path(path).replace_extension().string();
      if (from != to) graph[from].insert(to);
    }
  }
  EXPECT_EQ(cycle_in(graph), "");
}

TEST(Modules, FoldersHaveNoCycle) {
  Graph graph;
  for (const Source& source : sources())
    for (const std::string& path : includes_of(source)) {
      const std::string from = folder_of(source.path), to = folder_of(path);
      if (from != to) graph[from].insert(to);
    }
  EXPECT_EQ(cycle_in(graph), "");
}

TEST(Modules, LinkTargetsHaveNoCycle) {
  static const std::regex command(
      R"((target_link_libraries|target_sources|add_library)\s*\(\s*(\w+)([^()]*(?:\([^()]*\)[^()]*)*)\))");
  static const std::regex target(R"(\btessera_\w+)");
  Graph graph;
  for (const char* module : {"kernels", "kernels/attention/cudnn", "model", "data", "train"}) {
    std::string text;
    for (const std::string& line :
         lines_of(text_of(fs::path(TESSERA_SOURCE_DIR) / module / "CMakeLists.txt")))
      text += line.substr(0, line.find('#')) + "\n";
    for (std::sregex_iterator at(text.begin(), text.end(), command), end; at != end; ++at) {
      const std::string name = (*at)[2], words = (*at)[3];
      for (std::sregex_iterator other(words.begin(), words.end(), target); other != end; ++other)
        graph[name].insert(other->str());
    }
  }
  EXPECT_GT(graph.size(), 10u);
  EXPECT_TRUE(graph["tessera_run"].contains("tessera_launch")) << "the CMakeLists.txt are read wrongly";
  EXPECT_EQ(cycle_in(graph), "");
}

// The same text with blanks for comments, strings, characters and preprocessor lines.
std::string code_of(const std::string& text) {
  std::string code = text;
  const auto blank = [&](size_t first, size_t last) {
    for (size_t i = first; i < last && i < code.size(); ++i)
      if (code[i] != '\n') code[i] = ' ';
  };
  const auto end_of_line = [&](size_t at) { return std::min(text.find('\n', at), text.size()); };
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    const size_t line_start = i == 0 ? 0 : text.rfind('\n', i - 1) + 1;
    if (text.compare(i, 2, "//") == 0) {
      end = end_of_line(i);
    } else if (text.compare(i, 2, "/*") == 0) {
      end = text.find("*/", i) + 2;
    } else if (text[i] == '#' && text.find_first_not_of(" \t", line_start) == i) {
      end = end_of_line(i);
      while (end < text.size() && text[end - 1] == '\\') end = end_of_line(end + 1);
    } else if (text.compare(i, 2, "R\"") == 0) {
      const size_t open = text.find('(', i);
      const std::string close = ")" + text.substr(i + 2, open - i - 2) + "\"";
      end = text.find(close, open) + close.size();
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !std::isalnum(text[i - 1])))) {
      while (end < text.size() && text[end] != text[i]) end += text[end] == '\\' ? 2 : 1;
      ++end;
    } else {
      i = end;
      continue;
    }
    blank(i, end);
    i = end;
  }
  return code;
}

struct Function {
  std::string head;  // what stands before its brace
  int64_t first_line, lines;
};

// Of a source in the layout of clang-format: a body's brace has a blank before it, a value's has none.
std::vector<Function> functions_of(const std::string& text) {
  static const std::regex scope(R"(^(inline\s+)?(namespace|extern)\b)");
  static const std::regex type(R"(^(template\s*<[^{}()]*>\s*)?(class|struct|union|enum)\b)");
  enum class Kind { kScope, kFunction, kOther };
  std::vector<Kind> open;
  std::vector<Function> found;
  const std::string code = code_of(text);
  std::string head;
  int64_t line = 1, head_line = 1, in_function = 0;  // braces that are open there
  for (size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    if (c == '\n') ++line;
    if (in_function > 0) {
      in_function += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (in_function == 0) found.back().lines = line - found.back().first_line + 1;
      continue;
    }
    if (c == '{') {
      const bool value = i == 0 || !std::isspace(code[i - 1]) || head.ends_with("= ");
      const bool is_type = std::regex_search(head, type) && head.find(") ") == std::string::npos;
      if (value) {
        open.push_back(Kind::kOther);
        continue;
      }
      if (!is_type && !std::regex_search(head, scope) && head.find('(') != std::string::npos) {
        found.push_back({head, head_line, 0});
        in_function = 1;
      } else {
        open.push_back(Kind::kScope);
      }
      head.clear();
    } else if (c == '}') {
      const bool value = !open.empty() && open.back() == Kind::kOther;
      if (!open.empty()) open.pop_back();
      if (!value) head.clear();
    } else if (c == ';') {
      head.clear();
    } else if (!head.empty() || !std::isspace(c)) {
      if (head.empty()) head_line = line;
      head += c == '\n' ? ' ' : c;
    }
  }
  EXPECT_EQ(in_function, 0) << "the braces do not match";
  return found;
}

TEST(Modules, NoFunctionIsLongerThanAHundredLines) {
  size_t count = 0;
  for (const Source& source : sources({"kernels", "model", "data", "train", "tests"})) {
    for (const Function& function : functions_of(source.text)) {
      ++count;
      EXPECT_LE(function.lines, 100) << source.path << ":" << function.first_line << ": " << function.head;
    }
  }
  EXPECT_GT(count, 1500u) << "functions are not found";
}

int64_t columns_of(const std::string& line) {  // characters, in UTF-8
  return std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; });
}

TEST(Modules, ProseEndsBeforeColumn110) {
  const fs::path root = TESSERA_SOURCE_DIR;
  std::vector<fs::path> pages{root / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(root / "docs"))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  for (const fs::path& page : pages) {
    bool code = false;
    int64_t number = 0;
    for (const std::string& line : lines_of(text_of(page))) {
      ++number;
      const size_t first = line.find_first_not_of(' ');
      if (first == std::string::npos) continue;
      if (line.compare(first, 3, "```") == 0) code = !code;
      if (code || line[first] == '|') continue;  // code, and the rows of tables
      EXPECT_LE(columns_of(line), 110) << fs::relative(page, root).string() << ":" << number;
    }
  }
}

TEST(Modules, CommentsEndBeforeColumn110) {
  for (const Source& source : sources({"kernels", "model", "data", "train", "tests"})) {
    const std::vector<std::string> lines = lines_of(source.text), code = lines_of(code_of(source.text));
    for (size_t i = 0; i < lines.size(); ++i) {
      const size_t comment = lines[i].find("//");
      if (comment == std::string::npos || code[i].find_first_not_of(' ', comment) != std::string::npos)
        continue;
      EXPECT_LE(columns_of(lines[i]), 110) << source.path << ":" << i + 1;
    }
  }
}

}  // namespace
