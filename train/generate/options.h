// The command line of ./generate.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_request.h"
#include "kernels/base/command_line.h"
#include "train/config/config.h"
#include "train/generate/prompts.h"

namespace tessera {

struct GenerateOptions {
  std::string model, tokenizer;
  std::vector<std::string> ignored_fields = {};  // as read_model_config() takes them
  PromptSources prompts;
  bool chat = false;
  ChatRequest chat_request;
  std::string system;
  SamplingRule sampling;
  int64_t seed = 1337;
  std::vector<std::string> stops;
  int64_t samples = 1, first_sample = 0;
  std::optional<int64_t> tokens;  // nothing: kDefaultTokens; in a conversation as many as fit
  int64_t context = 0;            // 0: as long as the prompts and the tokens need
  int64_t batch = 8;
  bool show_special = false, json = false;
  DeviceRequest device = DeviceRequest::kAuto;
  Precision precision = Precision::kAuto;
  AttentionKind attention = AttentionKind::kFlash;
  CacheDtype cache = CacheDtype::kAuto;
  bool plan = false;
  std::string device_memory;
  int arch = 0;

  bool has_prompts() const { return !prompts.texts.empty() || !prompts.file.empty(); }
};

inline constexpr int64_t kDefaultTokens = 256;
inline constexpr int64_t kDefaultChatContext = 4096;  // for a conversation; the model's context if that is
                                                      // shorter

void add_generate_options(Options& app, GenerateOptions& options);

// Error: options that exclude each other, or values that are wrong for any model
void check_options(const GenerateOptions& options);

}  // namespace tessera
