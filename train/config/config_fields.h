// The one list of configuration keys.
#pragma once

#include "train/config/config.h"
#include "train/config/config_values.h"

namespace tessera {

namespace fields {

template <class Section, class Visit>
void visit_model(Section& model, Visit& visit) {
  visit("model.preset", model.preset, OneOf<Preset>{},
        "A published model: its values are then the defaults of the keys of the model");
  visit("model.vocab_size", model.vocab_size, Whole{.at_least = 1, .at_most = most_of("model.vocab_size")},
        "Tokens of the vocabulary: 257 for bytes, 50257 for GPT-2's tokenizer");
  visit("model.context", model.context, Whole{.at_least = 1, .at_most = most_of("model.context")},
        "The longest sequence, in tokens; learned positions: rows of their table");
  visit("model.layers", model.layers, Whole{.at_least = 1, .at_most = most_of("model.layers")},
        "Transformer blocks");
  visit("model.heads", model.heads, Whole{.at_least = 1, .at_most = most_of("model.heads")},
        "Attention heads of a block; divides model.channels if model.head_dim is auto");
  visit("model.kv_heads", model.kv_heads,
        Whole{.at_least = 1, .at_most = most_of("model.kv_heads"), .zero = "auto"},
        "Heads of keys and values, shared by groups of heads; divides model.heads; auto: model.heads");
  visit("model.channels", model.channels,
        Whole{.at_least = 8, .at_most = most_of("model.channels"), .multiple_of = 8},
        "Width of the residual stream");
  visit("model.head_dim", model.head_dim,
        Whole{.at_least = 8, .at_most = most_of("model.head_dim"), .multiple_of = 8, .zero = "auto"},
        "Width of a head; auto: model.channels / model.heads");
  visit("model.mlp_width", model.mlp_width,
        Whole{.at_least = 8, .at_most = most_of("model.mlp_width"), .multiple_of = 8, .zero = "auto"},
        "Width of the hidden layer of every MLP; auto: 4 times model.channels");
  visit("model.mlp", model.mlp, OneOf<Mlp>{},
        "The MLP; gelu: GPT-2's, by tanh; gelu_exact: by erf; relu2: the square of relu; swiglu: gated, "
        "Llama's and Qwen's; geglu: gated by gelu, Gemma's; clamped_swiglu: of limited values, gpt-oss's");
  visit("model.norm", model.norm, OneOf<NormKind>{}, "layernorm: GPT-2's; rmsnorm: Llama's and Qwen's");
  visit("model.norm_epsilon", model.norm_epsilon, Number{.at_least = 1e-12, .at_most = 1},
        "Norms: added to the variance, or to the mean of squares");
  visit(
      "model.norm_place", model.norm_place, OneOf<NormPlace>{},
      "before: norms of what attention and the MLP read; both: and of what they add to the residual stream, "
      "Gemma 3's; after: of that alone, OLMo 2's");
  visit("model.norm_plus_one", model.norm_plus_one, Flag{}, "rmsnorm: multiply by 1 + weight, as Gemma does");
  visit("model.norm_embeddings", model.norm_embeddings, Flag{},
        "A norm of the embeddings, in front of the first block, as BLOOM has it");
  visit("model.positions", model.positions, OneOf<Positions>{},
        "learned: a table of positions, GPT-2's; alibi: scores have a bias that grows with the distance, "
        "BLOOM's; "
        "rope: rotary, Llama's and Qwen's");
  visit("model.bias", model.bias, OneOf<Bias>{},
        "The linear layers with a bias; all: GPT-2's; attention: those of queries, keys, values and the "
        "output; qkv: the first three of these, Qwen2.5's; mlp: those of the MLP; none: Llama's");
  visit("model.qk_norm", model.qk_norm, OneOf<QkNorm>{},
        "An RMSNorm of queries and keys, before they are rotated; true: of every head by itself, Qwen3's; "
        "all_heads: of all heads of a token together, OLMo 2's");
  visit("model.window", model.window, WindowPattern{},
        "How many tokens attention of a block sees, the last ones, its own among them; full: all. A pattern "
        "repeats over the blocks: 1024*5,full is five blocks of 1,024 tokens, then one of all, and so on");
  visit(
      "model.sparse", model.sparse, SparseAttention{},
      "Which blocks of block:N (128) keys a block of as many queries sees: the last window:N, its own among "
      "them, the first global:N, every stride:N-th one back, and random:N others drawn by seed:N; "
      "chosen:N: each query sees N blocks, its own and others that it chooses; full: all. "
      "A pattern repeats over the blocks of the model, as that of model.window does");
  visit("model.tied", model.tied, Flag{},
        "The logits use the token table; false: they have their own matrix");
  visit("model.scale_embeddings", model.scale_embeddings, Flag{},
        "Multiply rows of the token table by the square root of model.channels, as Gemma does");
  visit("model.embedding_scale", model.embedding_scale, Number{.above = 0, .at_most = 1e6},
        "Rows of the token table are multiplied by it, as Granite does");
  visit("model.residual_scale", model.residual_scale, Number{.above = 0, .at_most = 1e6},
        "What attention and the MLP add to the residual stream is multiplied by it, as Granite does");
  visit("model.logit_divisor", model.logit_divisor, Number{.above = 0, .at_most = 1e6},
        "The logits are divided by it, before they are capped, as Granite does");
  visit("model.logit_cap", model.logit_cap, Number{.at_least = 0, .at_most = 1e6},
        "c: logits become c tanh(logits / c) before the loss and before a token is drawn; 0: they stay");
  visit("model.attention_cap", model.attention_cap, Number{.at_least = 0, .at_most = 1e6},
        "c: scores of attention become c tanh(scores / c) before the softmax, Gemma 2's; 0: they stay");
  visit("model.attention_sinks", model.attention_sinks, Flag{},
        "A learned number for each head, which takes part in the softmax of every query as the score of no "
        "key: "
        "a head whose number is high attends to nothing, gpt-oss's");
  visit("model.scale_attention", model.scale_attention, Flag{},
        "Divide attention scores by the square root of model.query_scalar");
  visit("model.query_scalar", model.query_scalar,
        Whole{.at_least = 1, .at_most = most_of("model.query_scalar"), .zero = "auto"},
        "See model.scale_attention; auto: model.head_dim");
  visit("model.scale_attention_by_layer", model.scale_attention_by_layer, Flag{},
        "Also divide them by the number of the block, counted from 1");
  using enum AttentionKind;  // kFlashFp8 costs a training more than it saves: docs/attention_results.md
  visit("model.attention", model.attention, OneOf<AttentionKind>{{kNaive, kFlash, kCudnn}},
        "flash: fused, memory linear in the sequence length; naive: stores the probabilities, quadratic; "
        "cudnn: NVIDIA's fused kernels, bf16 on a GPU");
  visit("model.position_extension", model.position_extension, OneOf<PositionExtension>{},
        "If train.init_from has fewer learned positions than model.context: none: refuse; interpolate: "
        "stretch its table; repeat: repeat it; blend: repeat it with overlapping copies");
}

template <class Section, class Visit>
void visit_experts(Section& experts, Visit& visit) {
  visit("model.experts.count", experts.count,
        Whole{.at_least = 1, .at_most = most_of("model.experts.count"), .zero = "none"},
        "A mixture of experts: how many gated MLPs stand in place of the MLP of a block; none: there is one "
        "MLP");
  visit("model.experts.active", experts.active,
        Whole{.at_least = 1, .at_most = most_of("model.experts.active"), .zero = "none"},
        "How many of them each token goes through, those of the largest logits of its router");
  visit("model.experts.width", experts.width,
        Whole{.at_least = 8, .at_most = most_of("model.experts.width"), .multiple_of = 8, .zero = "none"},
        "Width of the hidden layer of an expert; model.mlp_width is that of blocks without experts");
  visit(
      "model.experts.shared_width", experts.shared_width,
      Whole{
          .at_least = 8, .at_most = most_of("model.experts.shared_width"), .multiple_of = 8, .zero = "none"},
      "Width of the hidden layer of a shared expert, which every token goes through as well, Qwen1.5-MoE's; "
      "none: there is no such expert");
  visit(
      "model.experts.router", experts.router, OneOf<Router>{},
      "The weights of a token's experts; softmax: of the logits of all experts, Qwen3's; softmax_of_chosen: "
      "of those of the chosen ones only");
  visit("model.experts.renormalise", experts.renormalise, Flag{},
        "softmax: the weights of a token are divided by their sum, as Qwen3 and Mixtral do");
  visit("model.experts.every", experts.every, Whole{.at_least = 1, .at_most = most_of("model.experts.every")},
        "Of so many blocks the last one has experts, the others one MLP; 1: every block has experts");
  visit("model.experts.dense_layers", experts.dense_layers, BlockNumbers{},
        "Numbers of blocks, counted from 0, that have one MLP in place of experts");
}

template <class Section, class Visit>
void visit_router_losses(Section& losses, Visit& visit) {
  visit("train.experts.balance", losses.balance, Number{.at_least = 0, .at_most = 1e6},
        "Experts: what the loss of uneven choices is multiplied by before it is added to the loss of the "
        "tokens, router_aux_loss_coef of transformers; 0: it is not added");
  visit("train.experts.z", losses.z, Number{.at_least = 0, .at_most = 1e6},
        "Experts: the same for the square of the logarithm of the sum of exponentials of a router's logits");
}

template <class Section, class Visit>
void visit_rope(Section& rope, Visit& visit) {
  visit("model.rope.theta", rope.theta, Number{.above = 1, .at_most = 1e12},
        "The base of the frequencies: pair i of a head turns by theta^(-2 i / R) a position, with R the "
        "channels of a head that are rotated");
  visit(
      "model.rope.local_theta", rope.local_theta, Number{.above = 1, .at_most = 1e12, .zero = "auto"},
      "The base of blocks with a window, whose frequencies then have no scaling; auto: they are as those of "
      "other blocks");
  visit("model.rope.share", rope.share, Number{.above = 0, .at_most = 1},
        "The share of each head's channels that is rotated, the first ones; the others stay as they are");
  visit("model.rope.scaling", rope.scaling, OneOf<RopeScaling>{},
        "How the frequencies are changed for a context longer than the model was trained on");
  visit("model.rope.factor", rope.factor, Number{.at_least = 1, .at_most = 1e6},
        "linear, llama3, yarn: frequencies, or the low ones, are divided by this");
  visit("model.rope.original_context", rope.original_context,
        Whole{.at_least = 1, .at_most = most_of("model.rope.original_context"), .zero = "auto"},
        "llama3, yarn, longrope: the context that the model was trained on; auto: model.context");
  visit("model.rope.low_frequency", rope.low_frequency, Number{.above = 0, .at_most = 1e6},
        "llama3: pairs that turn fewer times in the original context are divided by the factor");
  visit("model.rope.high_frequency", rope.high_frequency, Number{.above = 0, .at_most = 1e6},
        "llama3: pairs that turn more times are not changed; above model.rope.low_frequency");
  visit("model.rope.beta_fast", rope.beta_fast, Number{.above = 0, .at_most = 1e6},
        "yarn: pairs that turn more times in the original context are not changed");
  visit("model.rope.beta_slow", rope.beta_slow, Number{.above = 0, .at_most = 1e6},
        "yarn: pairs that turn fewer times are divided by the factor; below model.rope.beta_fast");
  visit("model.rope.truncate", rope.truncate, Flag{},
        "yarn: the numbers of the pairs between which to blend are rounded to whole ones");
  visit("model.rope.attention_factor", rope.attention_factor,
        Number{.above = 0, .at_most = 1e6, .zero = "auto"},
        "yarn, longrope: multiplies the rotated queries and keys; auto: 0.1 ln(factor) + 1, or for longrope "
        "sqrt(1 + ln(f) / ln(original context)), with f = model.context / original context if that is above "
        "1, else 1");
  visit("model.rope.short_factors", rope.short_factors, Numbers{},
        "longrope: the frequency of each pair of channels that is rotated is divided by its number, where "
        "sequences are at most model.rope.original_context long");
  visit("model.rope.long_factors", rope.long_factors, Numbers{}, "longrope: the same, where they are longer");
}

template <class Section, class Visit>
void visit_dropout(Section& dropout, Visit& visit) {
  visit("model.dropout.embedding", dropout.embedding, Probability{},
        "Training drops this part of the embeddings' elements; model.dropout=P sets all three");
  visit("model.dropout.residual", dropout.residual, Probability{},
        "The same of what attention and the MLP of each block add to the residual stream");
  visit("model.dropout.attention", dropout.attention, Probability{},
        "The same of attention's probabilities; not with model.attention=cudnn");
}

template <class Section, class Visit>
void visit_data(Section& data, Visit& visit) {
  visit("data.train", data.train, Sources{},
        "builtin, or a path: text file, shard, folder of shards, pattern a/*_train_*.bin; or several, with "
        "their shares of the sequences");
  visit("data.validation", data.validation, Text{},
        "A path as for data.train; \"\": hold out the end of each source of data.train");
  visit("data.validation_fraction", data.validation_fraction, Number{.above = 0, .at_most = 0.5},
        "The fraction of each source of data.train that is held out if data.validation is \"\"");
  visit("data.shuffle", data.shuffle, Flag{},
        "Visit the training sequences in a random order, a different one each epoch");
  visit("data.shift", data.shift, OneOf<Shift>{},
        "Cut the training sequences at another offset in each epoch; auto: as data.shuffle if "
        "data.documents is join; a resumed run continues as it began");
  visit("data.documents", data.documents, OneOf<Documents>{},
        "join: documents follow one another in a sequence, and attention crosses them; mask: whole documents "
        "share a sequence, each sees only itself, and its positions begin at 0");
}

template <class Section, class Visit>
void visit_train(Section& train, Visit& visit) {
  visit("train.folder", train.folder, Text{},
        "Where the run writes its configuration, metrics and checkpoints; \"\": runs/<name of this file>");
  visit(
      "train.init_from", train.init_from, Text{},
      "A folder with config.json and model.safetensors to start from, which also sets the keys of the model; "
      "\"\": random weights; required: refuse to start until one is named");
  visit("train.ignore_fields", train.ignore_fields, Paths{.of = "name"},
        "Fields in the config.json of train.init_from that Tessera does not know and that change nothing; "
        "--ignore-field NAME adds one");
  visit("train.steps", train.steps, Whole{.zero = "auto"}, "Optimizer steps; auto: those of train.epochs");
  visit(
      "train.epochs", train.epochs, Number{.above = 0, .at_most = 1e6, .zero = "none"},
      "In place of train.steps: visit the training sequences so many times, 0.5 for half of them; the steps "
      "that this takes are rounded up");
  visit("train.patience", train.patience, Whole{},
        "End the run after so many evaluations in a row without a new lowest validation loss; 0: never");
  visit("train.tokens_per_step", train.tokens_per_step, Whole{.at_least = 1},
        "Tokens of an optimizer step; a multiple of the sequence length");
  visit("train.sequence_length", train.sequence_length, Whole{.at_most = 10'000'000, .zero = "auto"},
        "Tokens of a sequence, at most model.context; auto: model.context");
  visit("train.context_schedule", train.context_schedule, Phases{},
        "In place of train.sequence_length: lengths that change during the run, by the steps done before");
  visit("train.micro_batch", train.micro_batch, Whole{.at_most = 1'000'000, .zero = "auto"},
        "Sequences in one forward and backward; auto: as many as fit and make a step faster");
  visit("train.precision", train.precision, OneOf<Precision>{},
        "The dtype of activations and GEMMs; auto: bf16 on a GPU, fp32 on the CPU");
  visit("train.gemm_dtype", train.fp8.gemm_dtype, OneOf<GemmDtype>{},
        "The dtype of the operands of the linear layers' GEMMs; bf16: that of train.precision; fp8: rounded "
        "to 8 bits, for outputs and for gradients of inputs; routers stay in train.precision");
  visit("train.tune", train.tune, OneOf<Tune>{},
        "The algorithms of GEMMs on a GPU; off: those that cuBLASLt takes first; auto: the fastest, from a "
        "table that ships or timed once and kept");
  visit("train.gemm_backend", train.gemm_backend, OneOf<GemmSource>{},
        "Whose kernels compute GEMMs on a Hopper GPU; cublaslt: NVIDIA's; auto: the faster ones with "
        "train.tune=auto, else Tessera's for GEMMs with an activation or a bias; tessera: Tessera's, where "
        "they can. Unless cublaslt, logits in bf16 are computed in one with the loss");
  visit(
      "train.recompute", train.recompute, OrAuto<ByBlockOf<SetOf<Keep, Recomputed>>>{},
      "What the backward recomputes to save memory: norms: their outputs; attention: q, k, v and attention, "
      "the costliest; activation: of swiglu; mlp: the hidden layer of every MLP; linear: all but attention's "
      "output; block: whole blocks; auto: what makes a step that fits fastest");
  visit("train.freeze", train.freeze, FrozenParts{},
        "What is not trained: a part of the model, or whole blocks, counted from 0");
  visit("train.classifier_chunk", train.classifier_chunk,
        Whole{.at_most = 100'000'000, .zero = "all", .minus_one = "auto"},
        "Tokens whose logits are in memory at a time; all: those of a micro-batch; auto: all, but for a "
        "vocabulary above 65536 about 1 GiB of logits");
  visit(
      "train.mlp_chunk", train.mlp_chunk, Whole{.at_most = 100'000'000, .minus_one = "auto"},
      "Tokens whose hidden layer of an MLP is in memory at a time, recomputed as by train.recompute=mlp; 0: "
      "those of a micro-batch, without recomputing; auto: 0, unless nothing fits without");
  visit("train.reduce", train.reduce, OneOf<DType>{{DType::kBF16, DType::kF32}},
        "With several GPUs: the precision in which bf16 gradients are summed over them");
  visit("train.time_limit", train.time_limit, Whole{.at_least = 1, .at_most = 86400},
        "With several GPUs: the seconds that they wait for one that does not start, or does not answer");
  visit("train.cuda_graphs", train.cuda_graphs, Flag{},
        "Run micro-batches as a CUDA graph from the second step on, on the CPU as a list of operations: same "
        "bits, faster where micro-batches are small");
  visit("train.deterministic", train.deterministic, Flag{}, "Same seed, same machine: same bits");
  visit("train.seed", train.seed, Whole{.at_most = std::numeric_limits<int64_t>::max()},
        "For the initial weights, the order of the data, dropout and the samples");
  visit("train.log_every", train.log_every, Whole{.at_least = 1},
        "Steps between printed lines, each with the means of its steps; metrics.jsonl has every step");
  visit("train.inside_every", train.inside_every, Whole{},
        "Steps between records of what goes on inside the model, in metrics.jsonl and report.html: norms of "
        "weights, gradients and updates, attention's logits and entropy, dead units, FP8 values that are cut "
        "off; 0: never");
  visit("train.report", train.report, Flag{},
        "Keep report.html in the run's folder up to date: a page with the curves, samples and events");
  visit("train.tensorboard", train.tensorboard, Flag{},
        "Also write TensorBoard's event files, to tensorboard/ in the run's folder");
  visit("train.metrics_command", train.metrics_command, Text{},
        "A command that rank 0 starts by /bin/sh once, and that gets each line of metrics.jsonl on its "
        "standard input, to send figures elsewhere; \"\": none");
}

template <class Section, class Base, class Visit>
void visit_lora(Section& lora, Base& base, Visit& visit) {
  visit("train.lora.rank", lora.rank, Whole{.at_least = 1, .at_most = 1'000'000, .zero = "none"},
        "LoRA: train two matrices of this many rows and columns beside each linear layer, in place of the "
        "model; none: train the model itself");
  visit("train.lora.alpha", lora.alpha, Number{.above = 0, .at_most = 1e6},
        "LoRA: what the two matrices compute is multiplied by alpha / rank");
  visit("train.lora.parts", lora.parts, SetOf<AdaptedParts, Adapted>{},
        "LoRA: the layers that get adapters: those of attention, of the MLP, which are also experts, of the "
        "router of experts");
  visit(
      "train.lora.base", base.form,
      OneOf<BaseForm>{{BaseForm::kAuto, BaseForm::kNf4, BaseForm::kNf4Double, BaseForm::kMxfp4}},
      "LoRA: what the blocks' frozen matrices are stored in; auto: what they are multiplied in, "
      "train.precision or FP8; nf4, nf4_double (with scales in 8 bits) and mxfp4: 4.5, 4.127 and 4.25 bits a "
      "number, widened to train.precision a block at a time");
  visit("train.lora.base_parts", base.parts, OneOf<LoraBaseParts>{},
        "LoRA: which matrices are stored in the 4 bits of train.lora.base; blocks: all of the blocks but "
        "routers; experts: those of experts, and the others in train.precision; auto: experts where base is "
        "mxfp4 and the model has experts, else blocks");
}

template <class Section, class Visit>
void visit_losses(Section& train, Visit& visit) {
  visit(
      "train.loss", train.loss, OneOf<LossKind>{},
      "What a training makes small; cross_entropy: that of the tokens that count; the others are losses of "
      "pairs of a chosen and a rejected answer, kto's of answers with a label. dpo, ipo and kto compare with "
      "a reference; simpo and orpo need none");
  visit("train.z_loss", train.z_loss, Number{.at_least = 0, .at_most = 1},
        "Cross entropy: this times the square of the logarithm of the softmax's sum is added for each token");
  visit(
      "train.label_smoothing", train.label_smoothing, Number{.at_least = 0, .below = 1},
      "Cross entropy: the share of the loss that is the mean over the vocabulary, in place of the target's");
  visit("train.preference.beta", train.preference.beta, Number{.above = 0, .at_most = 1000},
        "Losses of pairs: the larger, the closer the model stays to the reference; orpo: the share of the "
        "odds ratio");
  visit("train.preference.label_smoothing", train.preference.label_smoothing,
        Number{.at_least = 0, .below = 0.5},
        "dpo and simpo: the share of pairs whose sides may be exchanged; dpo's loss is then the robust one");
  visit("train.preference.gamma", train.preference.gamma, Number{.at_least = 0, .at_most = 1000},
        "simpo: the margin between the two sides");
  visit("train.preference.cross_entropy", train.preference.cross_entropy,
        Number{.at_least = 0, .at_most = 1000},
        "dpo, ipo, simpo: this times the mean cross entropy of the chosen answer is added; orpo always adds "
        "it once");
  visit("train.preference.desirable", train.preference.desirable, Number{.at_least = 0, .at_most = 1000},
        "kto: what the loss of a desirable answer is multiplied by");
  visit("train.preference.undesirable", train.preference.undesirable, Number{.at_least = 0, .at_most = 1000},
        "kto: what the loss of an undesirable answer is multiplied by");
  visit("train.reference", train.reference, Text{},
        "dpo, ipo, kto: a folder with the weights of the reference; \"\": with LoRA the model without its "
        "adapters, else train.init_from");
  visit("train.stored_reference", train.stored_reference, Flag{},
        "dpo, ipo, kto: take the reference's log-probabilities from the file that ./evaluate REFERENCE "
        "--data PATH "
        "--log-probs wrote beside the data; no reference is in memory");
  visit("train.teacher", train.teacher, Text{},
        "Distillation: a folder with the weights of a model of the same tokenizer, whose probabilities the "
        "training comes near; \"\": none");
  visit("train.teacher_base", train.teacher_base, OneOf<BaseForm>{},
        "Distillation: what the matrices of the teacher's blocks are stored in; auto: train.precision; fp8, "
        "nf4, nf4_double and mxfp4: 8, 4.5, 4.127 and 4.25 bits a number, widened to train.precision a block "
        "at a time; mxfp4 of a model with experts: only those");
  visit("train.teacher_logits", train.teacher_logits,
        Whole{.at_least = 1, .at_most = 1 << 20, .zero = "none"},
        "Distillation: so many logits of each token, the teacher's largest, are in the file that ./evaluate "
        "TEACHER --data PATH --teacher-logits K wrote beside the data; no teacher is in memory; none: it "
        "computes them");
  visit("train.distillation.temperature", train.distillation.temperature, Number{.above = 0, .at_most = 1000},
        "Distillation: what the logits of both models are divided by");
  visit("train.distillation.cross_entropy", train.distillation.cross_entropy,
        Number{.at_least = 0, .at_most = 1},
        "Distillation: the share of the loss that is the cross entropy of the data's tokens");
  visit("train.distillation.reverse", train.distillation.reverse, Number{.at_least = 0, .at_most = 1},
        "Distillation: the share of the divergence that is KL(student, teacher), which keeps to what the "
        "teacher finds probable; the rest is KL(teacher, student)");
}

template <class Section, class Visit>
void visit_bad_step(Section& on_bad_step, Visit& visit) {
  visit("train.on_bad_step.nonfinite", on_bad_step.nonfinite, OneOf<OnNonfinite>{},
        "A step whose loss or gradient norm is not finite; stop: end the run, and say where the first bad "
        "value comes from; skip: leave weights and optimizer as they are, and go on with the next step; "
        "rewind: go back to the newest checkpoint, and on from there with the sequences that follow the "
        "step");
  visit("train.on_bad_step.spike", on_bad_step.spike, OneOf<OnSpike>{},
        "A step whose loss or gradient norm lies far above those of the steps before; ignore: train on it "
        "as on any other; skip, rewind, stop: as for nonfinite");
  visit("train.on_bad_step.spike_score", on_bad_step.spike_score, Number{.above = 0, .at_most = 1e6},
        "How far above is a spike: in deviations from the median of the last 128 steps, estimated robustly");
  visit("train.on_bad_step.most_skips", on_bad_step.most_skips, Whole{.at_least = 1},
        "How many steps a run may skip; the next one stops it");
  visit("train.on_bad_step.most_rewinds", on_bad_step.most_rewinds, Whole{.at_least = 1},
        "How often a run may go back; the next time stops it");
}

template <class Section, class Visit>
void visit_fp8(Section& fp8, Visit& visit) {
  visit("train.fp8.scaling", fp8.scaling, OneOf<Fp8Scaling>{},
        "FP8: where the scale of a tensor comes from; delayed: its largest element in the step before; "
        "current: its own largest element, which takes one more pass");
  visit("train.fp8.edges", fp8.edges, Flag{}, "FP8: also use it in the first and the last block");
  visit("train.fp8.head", fp8.head, Flag{}, "FP8: also use it for the logits");
  visit("train.fp8.dw", fp8.dw, Flag{}, "FP8: also use it for the gradients of the blocks' weights");
}

template <class Section, class Visit>
void visit_memory(Section& memory, Visit& visit) {
  visit("memory.offload", memory.offload, OrAuto<OffloadedParts>{},
        "What lies in the host's memory in place of the GPU's; optimizer: moments and the lower bits of "
        "masters, which the update reads and writes over the bus; activations: what blocks keep for the "
        "backward, copied out and back while other blocks compute; weights: copied to the GPU block by "
        "block, likewise; gradients: of each block, copied to the GPU, added to and copied back; auto: what "
        "makes a step that fits fastest");
}

template <class Section, class Visit>
void visit_parallel(Section& parallel, Visit& visit) {
  visit(
      "parallel.shard", parallel.shard, OrAuto<OneOf<Shard>>{},
      "What the ranks of a run split, to save memory on each: optimizer: moments and the lower bits of "
      "masters (ZeRO stage 1); gradients: these, too (2); weights: these, too (3), gathered block by block; "
      "auto: what makes a step that fits fastest");
  visit(
      "parallel.replicas", parallel.replicas, Whole{.at_most = 4096, .zero = "auto"},
      "How many groups of ranks each hold all parameters, which parallel.shard splits within a group: then "
      "only the sums of gradients go from group to group, once a step; divides the number of ranks, and a "
      "group has all ranks of its sequences; auto: on several machines 1 or one for each machine, whichever "
      "makes a step that fits faster; on one machine 1");
  visit(
      "parallel.context", parallel.context, Whole{.at_least = 1, .at_most = 4096},
      "How many ranks share the tokens of each sequence, for contexts that are longer than one GPU has room "
      "or time for: each has a part of the tokens, and attention gathers keys and values of all; divides the "
      "number of ranks");
  visit(
      "parallel.context_heads", parallel.context_heads, Whole{.at_most = 4096, .zero = "auto"},
      "How many heads of keys and values attention gathers at a time, where several ranks share a sequence: "
      "the next ones are sent while it computes. Fewer take less memory; divides the model's number of them; "
      "auto: the most that take up to 2 GiB");
}

template <class Section, class Visit>
void visit_optimizer(Section& optimizer, Visit& visit) {
  visit("optimizer.rule", optimizer.rule, OneOf<OptimizerRule>{},
        "How parameters are updated; muon: the matrices of the blocks by the direction of their gradient's "
        "mean made orthonormal, with AdamW's learning rates, and all others by AdamW");
  visit("optimizer.learning_rate", optimizer.learning_rate, Number{.above = 0},
        "The highest learning rate, after the warm-up");
  visit("optimizer.min_learning_rate", optimizer.min_learning_rate, Number{.at_least = 0},
        "The learning rate at the end of the schedule; at most optimizer.learning_rate");
  visit("optimizer.schedule", optimizer.schedule, OneOf<Schedule>{},
        "How the learning rate falls after the warm-up; wsd: constant, then linear at the end");
  visit("optimizer.warmup", optimizer.warmup, WarmUpLength{},
        "Steps in which the learning rate rises linearly, or their share of the run");
  visit("optimizer.decay_fraction", optimizer.decay_fraction, Number{.at_least = 0, .at_most = 1},
        "wsd: the fraction of the steps, at the end, in which the learning rate falls");
  visit("optimizer.beta1", optimizer.beta1, Number{.at_least = 0, .below = 1},
        "AdamW: decay of the mean of gradients");
  visit("optimizer.beta2", optimizer.beta2, Number{.at_least = 0, .below = 1},
        "AdamW: decay of the mean of squared gradients");
  visit("optimizer.epsilon", optimizer.epsilon, Number{.above = 0}, "AdamW: added to the root of that mean");
  visit("optimizer.weight_decay", optimizer.weight_decay, Number{.at_least = 0},
        "Each step subtracts from every matrix this times the learning rate times the matrix");
  visit("optimizer.max_grad_norm", optimizer.max_grad_norm, Number{.at_least = 0},
        "Gradients with a larger global norm are scaled down to this; 0: never");
  visit("optimizer.moments", optimizer.moments, OneOf<DType>{{DType::kF32, DType::kBF16}},
        "The type of AdamW's two means and Muon's one; bf16: stochastic rounding, 2 bytes less for each");
  visit("optimizer.muon.momentum", optimizer.muon.momentum, Number{.at_least = 0, .below = 1},
        "Muon: decay of the mean of gradients, which Nesterov's step looks ahead of");
  visit(
      "optimizer.muon.method", optimizer.muon.method, OneOf<Orthogonal>{},
      "Muon: the five polynomials that make the mean orthonormal; newton_schulz: those that Muon came with, "
      "less exact");
  visit("optimizer.muon.variance", optimizer.muon.variance, Flag{},
        "Muon: rows of an update are made alike in length over steps (NorMuon)");
  visit("optimizer.muon.beta2", optimizer.muon.beta2, Number{.at_least = 0, .below = 1},
        "Muon: decay of the mean of squares of a row, for optimizer.muon.variance");
  visit("optimizer.muon.cautious_decay", optimizer.muon.cautious_decay, Flag{},
        "Muon: weights decay only where the update makes them smaller, too");
  visit("optimizer.qk_clip", optimizer.qk_clip, Number{.at_least = 0, .at_most = 1e6},
        "After a step, heads of attention with a score above this have their weights of queries and keys "
        "scaled down to it (QK-Clip; 100 as published); 0: none");
}

template <class Section, class Visit>
void visit_evaluation(Section& evaluation, Visit& visit) {
  visit("evaluation.every", evaluation.every, Whole{},
        "Steps between validation losses, and one at the end; 0: never");
  visit("evaluation.sequences", evaluation.sequences, Whole{.at_least = 1},
        "Sequences of an evaluation, at most");
  visit("evaluation.at_start", evaluation.at_start, Flag{},
        "Also evaluate before the first step of a fresh run, unless evaluation.every is 0");
  visit("evaluation.by_position", evaluation.by_position, Flag{},
        "Also record the loss by position in the sequence, and print it at the end: do later tokens profit?");
  visit(
      "evaluation.tasks", evaluation.tasks, Paths{},
      "Multiple-choice tasks to answer with each validation loss: HellaSwag, ARC, JSON lines, llm.c's .bin");
  visit("evaluation.task_items", evaluation.task_items, Whole{.zero = "all"},
        "Items of each task, at most: the first ones");
}

template <class Section, class Visit>
void visit_sampling(Section& sampling, Visit& visit) {
  visit("sampling.every", sampling.every, Whole{}, "Steps between samples, and one at the end; 0: never");
  visit("sampling.prompt", sampling.prompt, Text{}, "The text that a sample continues");
  visit("sampling.special_tokens", sampling.special_tokens, OneOf<SpecialTokens>{},
        "What names of special tokens in the prompt are: text, or parse: the tokens");
  visit("sampling.tokens", sampling.tokens, Whole{.at_least = 1}, "Tokens of a sample, at most");
  visit("sampling.temperature", sampling.temperature, Number{.at_least = 0},
        "1: the model's probabilities; lower: more probable tokens; 0: always the most probable");
  visit("sampling.top_k", sampling.top_k, Whole{},
        "Sample from the most probable tokens, this many; 0: from all");
  visit("sampling.cache_dtype", sampling.cache_dtype,
        OneOf<CacheDtype>{{CacheDtype::kAuto, CacheDtype::kFp8, CacheDtype::kInt8, CacheDtype::kInt4}},
        "The cache of keys and values; auto: as the model computes; fp8, int8, int4: all but the newest "
        "tokens as codes");
}

template <class Section, class Visit>
void visit_checkpoint(Section& checkpoint, Visit& visit) {
  visit("checkpoint.every", checkpoint.every, Whole{},
        "Steps between checkpoints, and one at the end; 0: only that one");
  visit("checkpoint.keep", checkpoint.keep, Whole{}, "How many of the newest checkpoints to keep; 0: all");
  visit("checkpoint.keep_every", checkpoint.keep_every, Whole{},
        "Also keep checkpoints at multiples of this, a multiple of checkpoint.every; 0: none");
  visit("checkpoint.keep_best", checkpoint.keep_best, Flag{},
        "Also write and keep a checkpoint at the lowest validation loss so far");
  visit("checkpoint.dtype", checkpoint.dtype, OneOf<DType>{{DType::kF32, DType::kBF16}},
        "The number format of the weights in a checkpoint; bf16: half the size");
  visit("checkpoint.file_gib", checkpoint.file_gib, Whole{.at_least = 1, .at_most = 100'000},
        "GiB of the largest file of weights, or of the optimizer; what is more goes into several, and ranks "
        "write them side by side");
}

}  // namespace fields

// Calls visit(key, member, kind, documentation) for every key, a section's keys one after the other. `config`
// is a Config or a const Config. The upper limits of the model's sizes keep its count of parameters and of
// operations within int64_t.
template <class C, class Visit>
void for_each_field(C& config, Visit&& visit) {
  visit("device", config.device, OneOf<DeviceRequest>{},
        "Where to compute; auto: a GPU if there is one, else the CPU");
  fields::visit_model(config.model, visit);
  fields::visit_experts(config.model.experts, visit);
  fields::visit_rope(config.model.rope, visit);
  fields::visit_dropout(config.model.dropout, visit);
  fields::visit_data(config.data, visit);
  fields::visit_train(config.train, visit);
  fields::visit_lora(config.train.lora, config.train.lora_base, visit);
  fields::visit_router_losses(config.train.experts, visit);
  fields::visit_losses(config.train, visit);
  fields::visit_bad_step(config.train.on_bad_step, visit);
  fields::visit_fp8(config.train.fp8, visit);
  fields::visit_parallel(config.parallel, visit);
  fields::visit_memory(config.memory, visit);
  fields::visit_optimizer(config.optimizer, visit);
  fields::visit_evaluation(config.evaluation, visit);
  fields::visit_sampling(config.sampling, visit);
  fields::visit_checkpoint(config.checkpoint, visit);
}

}  // namespace tessera
