// CudnnAttention: graphs of scaled dot-product attention, built once for every problem and then run.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING  // libcudnn, libcudart and libcuda are looked for at run time
#define CUDNN_FRONTEND_SKIP_JSON_LIB           // graphs are not serialised
#include "kernels/attention/cudnn.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <bit>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <unordered_map>
#include <vector>

#include "kernels/attention/family.h"
#include "kernels/base/check.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend's calls of cuDNN go through this handle
}

namespace tessera::attention {
namespace {

namespace fe = cudnn_frontend;
namespace graph = cudnn_frontend::graph;
using Tensor = std::shared_ptr<graph::Tensor_attributes>;

constexpr const char* kLibrary = "libcudnn.so.9";
constexpr size_t kOldestVersion = 90000;
// A deterministic backward on Hopper may store the gradients of all scores, unless they are more bytes than
// this variable of the frontend says: then, from cuDNN 9.25 on, it adds up dQ in a fixed order. The default
// is to store, which is faster. The frontend reads the variable since 1.32 at the latest.
constexpr const char* kScoresLimit = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";

// Empty, or why cuDNN cannot be used. Looks once.
const std::string& load_library() {
  static const std::string why_not = []() -> std::string {
    // The frontend takes the first CUDA runtime that it finds, which may be older
    // than this build; the user may name another.
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", fmt::format("libcudart.so.{}", CUDART_VERSION / 1000).c_str(),
           0);
    setenv(kScoresLimit, "0", 0);
    // By name, as the loader is set up; then where it was when this program was built.
    for (const char* name : {kLibrary, TESSERA_CUDNN_FOLDER "/libcudnn.so.9"}) {
      fe::cudnn_dlhandle = dlopen(name, RTLD_NOW);
      if (fe::cudnn_dlhandle != nullptr) break;
    }
    if (fe::cudnn_dlhandle == nullptr)
      return fmt::format(
          "{} cannot be loaded ({}). Install cuDNN 9 for CUDA {}, or name its folder in LD_LIBRARY_PATH",
          kLibrary, dlerror(), CUDART_VERSION / 1000);
    const size_t version = fe::detail::get_backend_version();
    if (version < kOldestVersion) return fmt::format("cuDNN 9 is needed, found version {}", version);
    return "";
  }();
  return why_not;
}

// The tensors of a graph, by which their pointers are given when it runs.
enum Id : int64_t { kQ = 1, kK, kV, kOut, kLse, kDOut, kDQ, kDK, kDV };
using Pointers = std::unordered_map<int64_t, void*>;

struct Graph {
  std::shared_ptr<graph::Graph> graph;
  int64_t workspace_bytes = 0;
};

using Key = std::vector<int64_t>;  // everything that a graph depends on

Key key_of(const AttnProblem& p, int64_t mode, std::initializer_list<const AttnTensor*> tensors) {
  Key key{mode,        p.batch,       p.tokens,
          p.kv_tokens, p.heads,       p.kv_heads,
          p.head_dim,  p.mask.causal, std::bit_cast<int32_t>(p.scale)};
  for (const AttnTensor* t : tensors) key.insert(key.end(), {t->batch, t->row, t->head});
  return key;
}

// A decoding problem in the terms that messages have: one query, as many keys as the cache holds
AttnProblem problem_of(const AttnDecodeProblem& p) {
  return {.struct_size = sizeof(AttnProblem),
          .dtype = p.dtype,
          .batch = p.batch,
          .tokens = 1,
          .kv_tokens = p.capacity,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .mask = {},
          .scale = p.scale,
          .dropout = {}};
}

[[noreturn]] void refuse(const AttnProblem& p, const char* what, const std::string& message) {
  fail("attention by cuDNN, {}: {} (batch {}, tokens {}, heads {}, kv heads {}, head dim {}, cuDNN {})", what,
       message, p.batch, p.tokens, p.heads, p.kv_heads, p.head_dim, cudnn_version());
}

// The frontend reports some failures as a status and some, such as a missing library, as an exception.
template <class Call>
void guarded(const AttnProblem& p, const char* what, Call&& call) {
  std::string message;
  try {
    fe::error_t error = call();
    if (error.is_good()) return;
    message = error.get_message();
  } catch (const std::exception& exception) {
    message = exception.what();
  }
  refuse(p, what, message);
}

// Dimensions in cuDNN's order, [B, heads, N, D], with the strides of the caller's tensor.
graph::Tensor_attributes describe(int64_t batch, int64_t heads, int64_t tokens, int64_t head_dim, Id id,
                                  const AttnTensor& t) {
  return graph::Tensor_attributes()
      .set_uid(id)
      .set_dim({batch, heads, tokens, head_dim})
      .set_stride({t.batch, t.head, t.row, 1})
      .set_data_type(fe::DataType_t::BFLOAT16);
}

graph::Tensor_attributes describe(const AttnProblem& p, Id id, const AttnTensor& t, int64_t heads) {
  return describe(p.batch, heads, p.tokens, p.head_dim, id, t);
}

graph::Tensor_attributes describe_lse(const AttnProblem& p) {
  return graph::Tensor_attributes()
      .set_uid(kLse)
      .set_dim({p.batch, p.heads, p.tokens, 1})
      .set_stride({p.heads * p.tokens, p.tokens, 1, 1})
      .set_data_type(fe::DataType_t::FLOAT);
}

// What an operation returns is described afterwards.
void describe_output(const Tensor& tensor, const graph::Tensor_attributes& as) {
  tensor->set_output(true)
      .set_uid(as.get_uid())
      .set_dim(as.get_dim())
      .set_stride(as.get_stride())
      .set_data_type(as.get_data_type());
}

std::shared_ptr<graph::Graph> new_graph() {
  auto g = std::make_shared<graph::Graph>();
  g->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return g;
}

std::shared_ptr<graph::Graph> describe_forward(const AttnForward& a) {
  const AttnProblem& p = a.problem;
  auto g = new_graph();
  auto options =
      graph::SDPA_attributes().set_name("attention").set_generate_stats(true).set_attn_scale(p.scale);
  if (p.mask.causal)
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  auto [out, lse] =
      g->sdpa(g->tensor(describe(p, kQ, a.q, p.heads)), g->tensor(describe(p, kK, a.k, p.kv_heads)),
              g->tensor(describe(p, kV, a.v, p.kv_heads)), options);
  describe_output(out, describe(p, kOut, a.out, p.heads));
  describe_output(lse, describe_lse(p));
  return g;
}

std::shared_ptr<graph::Graph> describe_decode(const AttnDecode& a) {
  const AttnDecodeProblem& p = a.problem;
  auto g = new_graph();
  const auto options =
      graph::SDPA_attributes().set_name("decode").set_generate_stats(false).set_attn_scale(p.scale);
  const auto describe_it = [&](Id id, const AttnTensor& t, int64_t heads, int64_t tokens) {
    return describe(p.batch, heads, tokens, p.head_dim, id, t);
  };
  auto [out, none] = g->sdpa(g->tensor(describe_it(kQ, a.q, p.heads, 1)),
                             g->tensor(describe_it(kK, a.k, p.kv_heads, p.capacity)),
                             g->tensor(describe_it(kV, a.v, p.kv_heads, p.capacity)), options);
  describe_output(out, describe_it(kOut, a.out, p.heads, 1));
  return g;
}

std::shared_ptr<graph::Graph> describe_backward(const AttnBackward& a) {
  const AttnProblem& p = a.problem;
  auto g = new_graph();
  auto options = graph::SDPA_backward_attributes()
                     .set_name("attention_backward")
                     .set_attn_scale(p.scale)
                     .set_deterministic_algorithm(a.deterministic != 0);
  if (p.mask.causal)
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  auto [dq, dk, dv] = g->sdpa_backward(
      g->tensor(describe(p, kQ, a.q, p.heads)), g->tensor(describe(p, kK, a.k, p.kv_heads)),
      g->tensor(describe(p, kV, a.v, p.kv_heads)), g->tensor(describe(p, kOut, a.out, p.heads)),
      g->tensor(describe(p, kDOut, a.dout, p.heads)), g->tensor(describe_lse(p)), options);
  describe_output(dq, describe(p, kDQ, a.dq, p.heads));
  describe_output(dk, describe(p, kDK, a.dk, p.kv_heads));
  describe_output(dv, describe(p, kDV, a.dv, p.kv_heads));
  return g;
}

}  // namespace

struct CudnnAttention::Impl {
  cudnnHandle_t handle = nullptr;
  CUstream_st* stream = nullptr;  // that the handle was last told
  std::map<Key, Graph> graphs;

  ~Impl() {
    graphs.clear();
    if (handle != nullptr) fe::detail::destroy_handle(handle);
  }

  template <class Describe>
  const Graph& find_or_build(const AttnProblem& p, const Key& key, const char* what, const char* refusal,
                             Describe&& describe_it) {
    if (const auto found = graphs.find(key); found != graphs.end()) return found->second;
    if (refusal != nullptr) refuse(p, what, refusal);
    Graph built;
    guarded(p, what, [&] {
      built.graph = describe_it();
      // The heuristic's first choice and no timing: two runs must make the same choice to give the same
      // bits.
      if (auto error = built.graph->build(handle, {fe::HeurMode_t::A}); error.is_bad()) return error;
      return built.graph->get_workspace_size(built.workspace_bytes);
    });
    return graphs.emplace(key, std::move(built)).first->second;
  }

  const Graph& forward_graph(const AttnForward& a) {
    return find_or_build(a.problem, key_of(a.problem, 0, {&a.q, &a.k, &a.v, &a.out}), "forward",
                         cudnn_refusal(a.problem, kLowestArch), [&] { return describe_forward(a); });
  }
  const Graph& backward_graph(const AttnBackward& a) {
    return find_or_build(
        a.problem,
        key_of(a.problem, a.deterministic ? 2 : 1, {&a.q, &a.k, &a.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv}),
        "backward", cudnn_refusal(a.problem, kLowestArch), [&] { return describe_backward(a); });
  }
  const Graph& decode_graph(const AttnDecode& a) {
    const AttnProblem p = problem_of(a.problem);
    return find_or_build(p, key_of(p, 3, {&a.q, &a.k, &a.v, &a.out}), "decode",
                         cudnn_decode_refusal(a.problem, kLowestArch), [&] { return describe_decode(a); });
  }

  void run(const Graph& g, const AttnProblem& p, const char* what, Pointers pointers, void* workspace,
           size_t given, CUstream_st* on) {
    if (static_cast<int64_t>(given) < g.workspace_bytes)
      refuse(p, what, fmt::format("needs {} bytes of workspace, got {}", g.workspace_bytes, given));
    guarded(p, what, [&]() -> fe::error_t {
      if (on != stream) {
        if (fe::detail::set_stream(handle, on) != CUDNN_STATUS_SUCCESS)
          return {fe::error_code_t::HANDLE_ERROR, "the stream was refused"};
        stream = on;
      }
      return g.graph->execute(handle, pointers, workspace);
    });
  }
};

bool cudnn_built() { return true; }

int cudnn_version_number() {
  return load_library().empty() ? static_cast<int>(fe::detail::get_backend_version()) : 0;
}

std::string cudnn_version() {
  const int v = cudnn_version_number();
  return v == 0 ? "" : fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

bool cudnn_asks_for_fixed_order() {
  if (CUDNN_FRONTEND_VERSION < 13200 || !load_library().empty()) return false;
  const char* limit = std::getenv(kScoresLimit);  // unless the user named another
  return limit != nullptr && std::string_view(limit) == "0";
}

bool cudnn_available(std::string& why_not) {
  why_not = load_library();
  return why_not.empty();
}

CudnnAttention::CudnnAttention() : impl_(std::make_unique<Impl>()) {
  check(load_library().empty(), "attention by cuDNN: {}", load_library());
  const cudnnStatus_t status = fe::detail::create_handle(&impl_->handle);
  check(status == CUDNN_STATUS_SUCCESS, "attention by cuDNN: cudnnCreate failed: {}",
        fe::detail::get_error_string(status));
}

CudnnAttention::~CudnnAttention() = default;

void CudnnAttention::forward(const AttnForward& a, void* workspace, size_t workspace_bytes,
                             CUstream_st* stream) {
  impl_->run(impl_->forward_graph(a), a.problem, "forward",
             {{kQ, a.q.data}, {kK, a.k.data}, {kV, a.v.data}, {kOut, a.out.data}, {kLse, a.lse}}, workspace,
             workspace_bytes, stream);
}

void CudnnAttention::backward(const AttnBackward& a, CUstream_st* stream) {
  impl_->run(impl_->backward_graph(a), a.problem, "backward",
             {{kQ, a.q.data},
              {kK, a.k.data},
              {kV, a.v.data},
              {kOut, a.out.data},
              {kDOut, a.dout.data},
              {kLse, const_cast<float*>(a.lse)},
              {kDQ, a.dq.data},
              {kDK, a.dk.data},
              {kDV, a.dv.data}},
             a.workspace, a.workspace_bytes, stream);
}

void CudnnAttention::decode(const AttnDecode& a, CUstream_st* stream) {
  impl_->run(impl_->decode_graph(a), problem_of(a.problem), "decode",
             {{kQ, a.q.data}, {kK, a.k.data}, {kV, a.v.data}, {kOut, a.out.data}}, a.workspace,
             a.workspace_bytes, stream);
}

int64_t CudnnAttention::decode_workspace(const AttnDecode& a) {
  return impl_->decode_graph(a).workspace_bytes;
}
int64_t CudnnAttention::forward_workspace(const AttnForward& a) {
  return impl_->forward_graph(a).workspace_bytes;
}
int64_t CudnnAttention::backward_workspace(const AttnBackward& a) {
  return impl_->backward_graph(a).workspace_bytes;
}

}  // namespace tessera::attention
