// libtessera_attention.so as others find it: what it shows, what the compiler made
// of its kernels, and PyTorch's view of it.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <sstream>
#include <utility>

#include "tests/attn_mask.h"
#include "tests/python.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNoCuobjdump =
    "no cuobjdump and nvdisasm on the PATH; tools/install --tests fetches them";

struct AttentionLibrary : ::testing::Test {
  fs::path folder =
      fs::temp_directory_path() / ("tessera_attention_library_test_" + std::to_string(getpid()));

  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }

  // `path` is the command's $0.
  ProcessResult shell(const std::string& command, const std::string& path = "bash") const {
    return run_shell(command, {path}, {.folder = folder});
  }
  // cuobjdump and nvdisasm from the PATH, else where the build found them
  ProcessResult dump(const std::string& options) const {
    return run_shell("PATH=\"$PATH:$1\"; exec cuobjdump " + options + " \"$0\"",
                     {ATTENTION_LIBRARY, CUOBJDUMP_FOLDER}, {.folder = folder});
  }
  bool can_dump() const {
    return shell("PATH=\"$PATH:$0\"; command -v cuobjdump && command -v nvdisasm", CUOBJDUMP_FOLDER).status ==
           0;
  }
};

// Alone in a process of any language, on a machine without a GPU or a driver
TEST_F(AttentionLibrary, LoadsAndAnswersWithoutADevice) {
  void* library = dlopen(ATTENTION_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  for (const char* name :
       {"attn_forward", "attn_backward", "attn_forward_workspace", "attn_backward_workspace", "attn_supports",
        "attn_documents", "attn_status_text", "attn_decode", "attn_decode_workspace", "attn_decode_supports"})
    EXPECT_NE(dlsym(library, name), nullptr) << name;
  EXPECT_EQ(dlsym(library, "cudaMalloc"), nullptr)
      << "symbols of the CUDA runtime are the library's own affair";
  const auto supports = reinterpret_cast<decltype(&attn_supports)>(dlsym(library, "attn_supports"));
  const AttnProblem problem = {sizeof(AttnProblem), ATTN_BF16, 1, 1024, 1024, 12, 12, 64,
                               test::attn_mask(1),  0.125f,    {}};
  EXPECT_EQ(supports(&problem, 90), ATTN_OK);
  dlclose(library);
}

TEST_F(AttentionLibrary, HeaderIsC) {
  if (shell("command -v cc").status != 0) GTEST_SKIP() << "no cc";
  const ProcessResult result = shell("cc -std=c99 -Wall -Wextra -pedantic -Werror -fsyntax-only -x c \"$0\"",
                                     TESSERA_SOURCE_DIR "/kernels/attention/attention.h");
  EXPECT_EQ(result.status, 0) << result.error;
}

// ptxas before 12.8 spills up to three pairs of registers in kernels for Hopper. With dropout and with
// masks other than full and causal, lists of blocks among them, which need more, so does any ptxas; and
// kernels for 8.0 that are compiled for Hopper, where others serve these problems; and the decoding kernel
// in fp32 at head dim 256, which waits for memory anyway. Three kernels spill one pair: that of ALiBi's
// rows, ALiBi's backward at head dim 128, and the decoding kernel in fp32 for sinks and biases. The forward
// in FP8 at head dim 128 has three warpgroups with S, P and O in 144 registers each of 160; two with more
// were slower. The decoding kernels of small caches keep a tile of codes in registers while it is widened.
// A forward with a cap at head dims up to 64 takes the tanh of 64 scores a thread in 128 registers.
constexpr int kMostStackBytes = CUDART_VERSION >= 12080 ? 0 : 24, kMostWithMore = 24, kOnePair = 8,
              kMostInFp8 = 40, kMostOfCodes = 72, kMostWithCap = 48;
bool needs_more_registers(const std::string& arch, const std::string& function) {
  const bool is_elsewhere = function.find("sm80") != std::string::npos && arch.starts_with("sm_90a");
  const bool is_wide = function.find("decode_kernel") != std::string::npos &&
                       function.find("F32TileILi256E") != std::string::npos;
  return is_elsewhere || is_wide || function.find("Drop") != std::string::npos ||
         function.find("MaskKindE2") != std::string::npos || function.find("WithMask") != std::string::npos ||
         function.find("Listed") != std::string::npos;
}
bool spills_one_pair(const std::string& function) {
  const bool is_decoding = function.find("decode_kernel") != std::string::npos;
  return function.find("AlibiRowsArgs") != std::string::npos ||
         function.find("WithAlibiINS1_13BackwardShapeILi128E") != std::string::npos ||
         (is_decoding && function.find("F32TileILi128ELb1E") != std::string::npos);
}

int most_stack_bytes(const std::string& arch, const std::string& function) {
  if (function.find("small_decode_kernel") != std::string::npos) return kMostOfCodes;
  if (function.find("Fp8TileILi128E") != std::string::npos) return kMostInFp8;
  if (function.find("WithCapINS1_11ForwardTileILi64E") != std::string::npos) return kMostWithCap;
  if (needs_more_registers(arch, function)) return kMostWithMore;
  return spills_one_pair(function) ? std::max(kOnePair, kMostStackBytes) : kMostStackBytes;
}

// A spilled register, or an array that is indexed at run time, costs more than any tuning gains.
TEST_F(AttentionLibrary, NoKernelUsesLocalMemory) {
  if (!can_dump()) GTEST_SKIP() << kNoCuobjdump;
  const ProcessResult result = dump("--dump-resource-usage");
  ASSERT_EQ(result.status, 0) << result.error;
  std::istringstream lines(result.out);
  std::string line, arch, function;
  int kernels = 0;
  while (std::getline(lines, line)) {
    if (line.starts_with("arch = ")) arch = line.substr(7);
    if (line.find(" Function ") != std::string::npos) function = line;
    if (line.find("REG:") == std::string::npos) continue;
    ++kernels;
    const size_t stack = line.find(" STACK:");
    ASSERT_NE(stack, std::string::npos) << line;
    EXPECT_LE(std::stoi(line.substr(stack + 7)), most_stack_bytes(arch, function)) << arch << function << "\n"
                                                                                   << line;
    EXPECT_NE(line.find(" LOCAL:0 "), std::string::npos) << arch << function << "\n" << line;
  }
  EXPECT_GT(kernels, 30);
}

// The kernels for Hopper use its tensor cores and its copy engine: HGMMA, in FP8 QGMMA, and UTMALDG.
TEST_F(AttentionLibrary, HopperKernelsUseWgmma) {
  if (!can_dump()) GTEST_SKIP() << kNoCuobjdump;
  if (dump("--list-elf").out.find("sm_90a") == std::string::npos) GTEST_SKIP() << "built without 90a";
  std::map<std::string, int> products, copies;  // by main kernel
  const std::regex main_kernels("Function (\\S*sm90\\S*(forward_kernel|backward_kernel)[^\\s:]*)");
  const std::string usage = dump("--dump-resource-usage --gpu-architecture sm_90a").out;
  for (std::sregex_iterator at(usage.begin(), usage.end(), main_kernels), end; at != end; ++at)
    products[(*at)[1]] = copies[(*at)[1]] = 0;
  EXPECT_GE(products.size(), 4u) << "forward and backward, two head dims";
  // Only these are disassembled: most kernels of the library are others. A command line holds so many names.
  std::string names;
  for (auto next = products.begin(); next != products.end();) {
    names += (names.empty() ? "" : ",") + next->first;
    if (++next != products.end() && names.size() < 50000) continue;
    const ProcessResult result =
        dump("--dump-sass --gpu-architecture sm_90a --function " + std::exchange(names, ""));
    ASSERT_EQ(result.status, 0) << result.error;
    std::istringstream lines(result.out);
    std::string line, function;
    while (std::getline(lines, line)) {
      if (const size_t at = line.find("Function : "); at != std::string::npos)
        function = line.substr(at + 11);
      const bool in_fp8 = function.find("fp8") != std::string::npos;
      if (line.find(in_fp8 ? "QGMMA" : "HGMMA") != std::string::npos) ++products[function];
      if (line.find("UTMALDG") != std::string::npos) ++copies[function];
    }
  }
  for (const auto& [name, count] : products) EXPECT_GT(count, 0) << name;
  for (const auto& [name, count] : copies) EXPECT_GT(count, 0) << name;
}

// The compiler launcher of the Hopper kernels: a remark that a kernel will be slow ends the build.
TEST_F(AttentionLibrary, BuildRefusesSlowWgmma) {
  const auto compile = [&](const std::string& remark, int status) {
    return shell("\"$0\" sh -c 'touch kernel.o; echo object; echo \"" + remark + "\" >&2; exit " +
                     std::to_string(status) + "' -o kernel.o; status=$?; ls; exit $status",
                 TESSERA_SOURCE_DIR "/tools/refuse_slow_wgmma");
  };
  EXPECT_EQ(compile("", 0).out, "object\nkernel.o\n");
  const ProcessResult fine = compile("ptxas info    : (C7519) warpgroup.arrive is injected", 0);
  EXPECT_EQ(fine.status, 0);
  EXPECT_EQ(fine.error, "ptxas info    : (C7519) warpgroup.arrive is injected\n");
  EXPECT_EQ(compile("error: not a kernel", 3).status, 3);
  const ProcessResult slow =
      compile("ptxas info    : (C7510) wgmma.mma_async instructions are serialized", 0);
  EXPECT_EQ(slow.status, 1);
  EXPECT_EQ(slow.out, "object\n") << "without the object, which a second build would take for good";
  EXPECT_NE(slow.error.find("(C7510)"), std::string::npos);
}

// Against PyTorch in fp64 and in bf16: the table of docs/examples/attention.py
TEST_F(AttentionLibrary, AgreesWithPyTorch) {
  const std::string python = python_program();
  if (run_process(python, {"-c", "import torch; torch.zeros(1, device='cuda')"}, {.folder = folder}).status !=
      0)
    GTEST_SKIP() << python << " has no torch with CUDA and a GPU; TESSERA_PYTHON names another";
  const std::string script = TESSERA_SOURCE_DIR "/docs/examples/attention.py";
  const ProcessResult result = run_process(python, {script, ATTENTION_LIBRARY}, {.folder = folder});
  EXPECT_EQ(result.status, 0) << result.error;
  std::printf("%s", result.out.c_str());
}

}  // namespace
}  // namespace tessera::testing
