#include "draft_model/output_rows.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "decoding/sampler.h"
#include "kernels/buffer_type.h"
#include "llama/state_readers.h"

namespace medusa {
namespace {

// Models whose layer leaves all rows of the state that its output matrix is multiplied by, and multiplies outputs only.
constexpr std::array<std::string_view, 8> leave_states{"qwen35",    "qwen35moe",  "glm4moe", "glm-dsa",
                                                       "deepseek2", "deepseek32", "hy-v3",   "bailingmoe3"};

std::string eagle_key(const char* name) {
    return std::string(eagle_architecture) + "." + name;
}

}  // namespace

std::optional<OutputRows::Matrix> OutputRows::matrix_of(const LlamaModel& drafter, const LlamaModel& model) {
    const std::string own = "blk." + std::to_string(drafter.layer_count()) + ".nextn.shared_head_head.weight";
    for (const LlamaModel* one : {&drafter, &model}) {
        for (const std::string& name : {own, std::string("output.weight"), std::string("token_embd.weight")}) {
            // Embeddings of its own do not make an output matrix of an EAGLE-3 drafter.
            if (one == &drafter && drafter.encodes_states() && name != "output.weight") continue;
            const TensorInfo* info = one->file().find(name);
            if (!info) continue;
            const std::string scale = name.substr(0, name.rfind('.')) + ".scale";
            const bool usual = info->n_dims == 2 && info->ne[0] == drafter.embedding_size() && !one->file().find(scale);
            return usual ? std::optional<Matrix>({&one->file(), info}) : std::nullopt;
        }
    }
    return std::nullopt;
}

std::unique_ptr<OutputRows> OutputRows::of(const LlamaModel& drafter, const LlamaModel& model,
                                           std::optional<int> wanted) {
    const bool leaves = std::ranges::find(leave_states, drafter.architecture()) != leave_states.end();
    const bool can = drafter.encodes_states() || (leaves && drafter.next_layers() == 1);
    const bool on_cpu = ggml_backend_dev_type(drafter.output_device()) == GGML_BACKEND_DEVICE_TYPE_CPU &&
                        ggml_backend_dev_type(model.output_device()) == GGML_BACKEND_DEVICE_TYPE_CPU;
    if (wanted == 0 || !can || !on_cpu) return nullptr;
    const auto matrix = matrix_of(drafter, model);
    const bool own_vocabulary = drafter.file().find("d2t") != nullptr;
    const int tokens = std::min(drafter.vocab_size(), model.vocab_size());
    if (!matrix || (!own_vocabulary && matrix->info->ne[1] < tokens)) return nullptr;
    if (!own_vocabulary && !wanted && tokens < 2 * first) return nullptr;
    return std::unique_ptr<OutputRows>(
        new OutputRows(drafter, model, *matrix, std::min(wanted.value_or(first), tokens)));
}

OutputRows::OutputRows(const LlamaModel& drafter, const LlamaModel& model, Matrix matrix, int wanted)
    : matrix_(matrix),
      width_(matrix.info->ne[0]),
      backend_(start_backend(drafter.output_device())),
      tensors_(3),
      packed_(3) {
    tokens_ = own_vocabulary(drafter.file());
    std::vector<Token> rows(tokens_.empty() ? static_cast<size_t>(wanted) : tokens_.size());
    std::iota(rows.begin(), rows.end(), 0);
    if (tokens_.empty()) {
        tokens_ = rows;
        choose_rows_of_text(model, wanted / share_of_text);
    }
    // A vocabulary of its own has the whole matrix, which is loaded already.
    if (drafter.file().find("d2t")) first_ = drafter.output_tensor();
    const bool loaded = first_ != nullptr;
    if (!loaded) first_ = declare(drafter, static_cast<int64_t>(rows.size()));
    if (!used_.empty()) of_text_ = declare(drafter, static_cast<int64_t>(used_.size()));
    if (drafter.encodes_states()) declare_norm(drafter);
    tensors_.allocate(drafter.output_device(), "rows of the drafter's output matrix", "use {no_drafter}");
    packed_.allocate(kernels::buffer_type(), "rows of the drafter's output matrix", "use {no_drafter}");
    if (!loaded) {
        const std::vector<char> bytes = read(rows);
        ggml_backend_tensor_set(first_, bytes.data(), 0, bytes.size());
    }
    if (norm_) {
        const TensorInfo* info = drafter.file().find("output_norm.weight");
        std::vector<float> values(static_cast<size_t>(width_));
        drafter.file().read(*info, 0, values.size() * sizeof(float), values.data());
        ggml_backend_tensor_set(norm_, values.data(), 0, values.size() * sizeof(float));
    }
    changed_ = of_text_ != nullptr;
}

ggml_tensor* OutputRows::declare(const LlamaModel& model, int64_t rows) {
    const bool packed = model.repacks() && kernels::serves(matrix_.info->type, width_);
    return ggml_new_tensor_2d((packed ? packed_ : tensors_).context(), matrix_.info->type, width_, rows);
}

// An EAGLE-3 drafter's states are those before its last norm.
void OutputRows::declare_norm(const LlamaModel& drafter) {
    const TensorInfo* info = drafter.file().find("output_norm.weight");
    if (!info || info->type != GGML_TYPE_F32 || info->ne[0] != width_) {
        throw Error(drafter.path() + ": output_norm.weight is no vector of F32 numbers", "use {no_drafter}");
    }
    norm_ = ggml_new_tensor_1d(tensors_.context(), GGML_TYPE_F32, width_);
    epsilon_ = drafter.file().get_f32(eagle_key("attention.layer_norm_rms_epsilon").c_str()).value_or(1e-5f);
}

// At first, the tokens that end an answer, which have high numbers, and the next ones.
void OutputRows::choose_rows_of_text(const LlamaModel& model, int most_rows) {
    const auto begin = static_cast<Token>(tokens_.size()),
               end = static_cast<Token>(std::min<int64_t>(matrix_.info->ne[1], model.vocab_size()));
    const auto most = static_cast<size_t>(std::min<int>(most_rows, end - begin));
    std::vector<Token> chosen;
    for (Token token = begin; token < end && chosen.size() < most; ++token) {
        if (model.is_end_of_generation(token)) chosen.push_back(token);
    }
    for (Token token = begin; token < end && chosen.size() < most; ++token) {
        if (!model.is_end_of_generation(token)) chosen.push_back(token);
    }
    for (const Token token : chosen) place_[token] = static_cast<int>(place_.size());
    used_.assign(chosen.size(), 0);
    bytes_ = read(chosen);
    tokens_.insert(tokens_.end(), chosen.begin(), chosen.end());
}

std::vector<char> OutputRows::read(std::span<const Token> rows) const {
    const size_t size = ggml_row_size(matrix_.info->type, width_);
    std::vector<char> out(size * rows.size());
    for (size_t begin = 0; begin < rows.size();) {
        size_t end = begin + 1;  // of those that lie one after the other
        while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
        matrix_.file->read(*matrix_.info, size * static_cast<uint64_t>(rows[begin]), size * (end - begin),
                           &out[size * begin]);
        begin = end;
    }
    return out;
}

void OutputRows::came(Token token) {
    const size_t first_of_text = tokens_.size() - used_.size();
    if (used_.empty() || static_cast<size_t>(token) < first_of_text || token >= matrix_.info->ne[1]) return;
    auto found = place_.find(token);
    if (found == place_.end()) {
        const auto place = static_cast<size_t>(std::ranges::min_element(used_) - used_.begin());
        place_.erase(tokens_[first_of_text + place]);
        tokens_[first_of_text + place] = token;
        found = place_.emplace(token, static_cast<int>(place)).first;
        const std::vector<char> row = read({&token, 1});
        std::ranges::copy(row, bytes_.begin() + static_cast<std::ptrdiff_t>(place * row.size()));
        changed_ = true;
    }
    used_[static_cast<size_t>(found->second)] = ++clock_;
}

OutputRows::Product& OutputRows::product_for(int states) {
    auto& product = products_[states];
    if (product) return *product;
    product.reset(new Product{DeviceGraph(backend_.get(), 16), nullptr});
    ggml_context* c = product->graph.context();
    ggml_tensor* x = product->input = product->graph.new_input(width_, states);
    if (norm_) x = ggml_mul(c, ggml_rms_norm(c, x, epsilon_), norm_);
    ggml_tensor* y = ggml_mul_mat(c, first_, x);
    if (of_text_) y = ggml_concat(c, y, ggml_mul_mat(c, of_text_, x), 0);
    product->graph.finish(ggml_soft_max(c, y));
    return *product;
}

void OutputRows::add_likeliest(std::span<const float> states, int ranks, int threads, LevelDrafts& out) {
    if (changed_) {
        ggml_backend_tensor_set(of_text_, bytes_.data(), 0, bytes_.size());
        changed_ = false;
    }
    set_threads(backend_.get(), threads);
    Product& product = product_for(static_cast<int>(states.size()) / static_cast<int>(width_));
    DeviceGraph::set(product.input, states);
    const std::span<const float> probabilities = product.graph.compute();
    for (size_t at = 0; at < probabilities.size(); at += tokens_.size()) {
        const auto row = probabilities.subspan(at, tokens_.size());
        top_indices(row, ranks, likeliest_);
        if (likeliest_.size() < static_cast<size_t>(ranks)) throw DraftsEnd("the drafter's logits are not numbers");
        for (const int i : likeliest_) {
            out.tokens.push_back(tokens_[static_cast<size_t>(i)]);
            out.q.push_back(row[static_cast<size_t>(i)]);
        }
    }
}

}  // namespace medusa
