// GEMMs by cuBLASLt or our own kernels: planned once for each key, enqueued on a stream.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <span>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/sm90/problem.h"

namespace tessera::cuda {

class GemmRunner final : public GemmLibrary {
 public:
  GemmRunner();
  ~GemmRunner() override;
  GemmRunner(const GemmRunner&) = delete;
  GemmRunner& operator=(const GemmRunner&) = delete;

  // False: there is no algorithm for it, as for odd sizes with an epilogue, and nothing is enqueued.
  bool try_run(const Gemm& gemm, void* workspace, cudaStream_t stream);
  void run(const Gemm& gemm, void* workspace, cudaStream_t stream);  // fails where try_run() is false

  // Runs several GEMMs as one kernel of ours, at most gemm::kMostOfBatch. serves_batch() is false if our
  // kernel does not serve this GEMM, or if cuBLASLt's were asked for.
  bool serves_batch(const Gemm& gemm) const;
  void run_batch(std::span<const Gemm> gemms, cudaStream_t stream);

  GemmPlatform platform() const override;
  std::vector<GemmAlgorithm> algorithms(const GemmKey& key, int most) override;
  bool supports(const GemmKey& key, const GemmAlgorithm& algorithm) override;
  std::function<void()> prepare(const Gemm& gemm, const GemmAlgorithm& algorithm, const Launch& on) override;
  void use(const GemmTable& table) override;
  void take_from(GemmSource source) override;

  // The same GEMM for our own kernel, if that is the choice
  std::optional<gemm::Problem> own(const Gemm& gemm);

 private:
  struct Plan;
  Plan describe(const GemmKey& key) const;
  std::vector<cublasLtMatmulAlgo_t> heuristic(const GemmKey& key, const Plan& plan, int most) const;
  std::optional<cublasLtMatmulAlgo_t> built(const GemmKey& key, const Plan& plan,
                                            const GemmAlgorithm& algorithm) const;
  std::optional<gemm::Problem> own(const GemmKey& key) const;  // without data; nullopt: we have no kernel
  bool prefers_own(const gemm::Problem& problem) const;        // used if no table has this GEMM
  const Plan& plan_for(const GemmKey& key);
  void enqueue(const Gemm& gemm, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, void* workspace,
               cudaStream_t stream) const;

  cublasLtHandle_t handle_ = nullptr;
  int multiprocessors_ = 0;
  bool has_own_ = false;
  GemmSource source_ = GemmSource::kCublasLt;
  std::map<GemmKey, GemmAlgorithm> chosen_;
  std::unique_ptr<std::map<GemmKey, Plan>> plans_;
};

}  // namespace tessera::cuda
