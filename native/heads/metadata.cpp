#include "heads/metadata.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/common.h"

namespace medusa {
namespace {

std::string shape_text(const int64_t* ne, size_t dims) {
    std::string out = "[";
    for (size_t i = 0; i < dims; ++i) out += (i ? ", " : "") + std::to_string(ne[i]);
    return out + "]";
}

}  // namespace

const TensorInfo& expect_tensor(const GgufFile& file, const std::string& name, const std::vector<int64_t>& shape) {
    const TensorInfo* info = file.find(name);
    if (!info) throw Error(file.path() + ": tensor " + name + " is missing: convert the heads again");
    std::vector<int64_t> wanted = shape;
    wanted.resize(GGML_MAX_DIMS, 1);
    if (!std::equal(wanted.begin(), wanted.end(), info->ne)) {
        throw Error(file.path() + ": tensor " + name + " has shape " +
                    shape_text(info->ne, std::max<size_t>(shape.size(), info->n_dims)) + ", this base needs " +
                    shape_text(wanted.data(), shape.size()) + ": these heads are for another base");
    }
    const ggml_type type = info->type;
    const bool is_vector = shape.size() == 1;
    if (is_vector ? type != GGML_TYPE_F32 : !is_weight_type(type)) {
        throw Error(file.path() + ": tensor " + name + " has type " + ggml_type_name(type) + ", it must be " +
                    (is_vector ? "f32" : "a float or quantized type") + ": convert the heads again");
    }
    return *info;
}

namespace {

constexpr int max_heads = 32;
constexpr int max_blocks = 16;
constexpr int max_attention_heads = 1024;
constexpr int max_layers = 1024;
constexpr int max_rank = 4096;

class Reader {
  public:
    Reader(const GgufFile& file, int vocab_size) : file_(file), path_(file.path()), vocab_size_(vocab_size) {}

    HeadsMetadata read() {
        read_kind();
        out_.head_count = count("medusa.head_count", 1, max_heads);
        // The first block of a Hydra head is the one that reads the path.
        out_.block_count = count("medusa.block_count", out_.reads_path() ? 1 : 0, max_blocks);
        read_lm_head();
        if (out_.kind == HeadsKind::recurrent) check_recurrent();
        read_input();
        read_accuracy();
        read_tree();
        const bool says_prefix = file_.get_u32("medusa.prefix.head_count").has_value();
        out_.has_prefix = out_.kind == HeadsKind::hydra_plus || (out_.kind == HeadsKind::medusa && says_prefix);
        if (out_.has_prefix) read_prefix();
        if (out_.kind == HeadsKind::streams) read_streams();
        check_tensor_names();
        return std::move(out_);
    }

  private:
    void read_kind() {
        const auto version = file_.get_u32("medusa.version");
        if (!version) throw Error(path_ + " contains no draft heads", "train or convert some, or run with {no_spec}");
        if (*version != 1) {
            throw Error(path_ + ": heads of format version " + std::to_string(*version) +
                        ", but this medusa supports only 1: update medusa");
        }
        const std::string kind = file_.get_string("medusa.kind").value_or("");
        for (const HeadsKind known :
             {HeadsKind::medusa, HeadsKind::hydra, HeadsKind::hydra_plus, HeadsKind::streams, HeadsKind::recurrent}) {
            if (kind == heads_kind_name(known)) {
                out_.kind = known;
                return;
            }
        }
        throw Error(
            path_ + ": heads of kind '" + kind + "' cannot run, medusa, hydra, hydra++, streams and recurrent can",
            "run with {no_spec}");
    }

    int count(const char* key, int lowest, int highest) const {
        const uint32_t value = file_.get_u32(key).value_or(0);
        if (value < static_cast<uint32_t>(lowest) || value > static_cast<uint32_t>(highest)) {
            throw Error(path_ + ": " + key + " is " + std::to_string(value) + ", not within " + std::to_string(lowest) +
                        ".." + std::to_string(highest) + ": convert the heads again");
        }
        return static_cast<int>(value);
    }

    void read_lm_head() {
        const std::string lm_head = file_.get_string("medusa.lm_head").value_or("own");
        out_.output_rows = vocab_size_;
        constexpr const char* names[] = {"own", "base", "draft_vocab"};
        const auto found = std::find(std::begin(names), std::end(names), lm_head);
        if (found == std::end(names)) {
            throw Error(path_ + ": medusa.lm_head is '" + lm_head + "', not own, base or draft_vocab");
        }
        out_.lm_head = static_cast<LmHead>(found - std::begin(names));
        if (out_.lm_head == LmHead::draft_vocab) read_draft_vocabulary();
    }

    void check_recurrent() const {
        if (out_.block_count == 1 && out_.lm_head != LmHead::own) return;
        throw Error(path_ + ": a recurrent head has one cell and one output matrix for all levels: train it again");
    }

    void read_draft_vocabulary() {
        const TensorInfo* map = file_.find("medusa.d2t");
        if (!map) throw Error(path_ + ": tensor medusa.d2t is missing: convert the heads again");
        if (map->type != GGML_TYPE_I32 || map->n_dims != 1 || map->ne[0] < 1 || map->ne[0] > vocab_size_) {
            throw Error(path_ + ": medusa.d2t has " + std::to_string(map->ne[0]) + " entries of type " +
                        ggml_type_name(map->type) + ", the base's vocabulary has " + std::to_string(vocab_size_) +
                        ": these heads are for another base");
        }
        out_.d2t.resize(map->ne[0]);
        file_.read(*map, 0, map->size, out_.d2t.data());
        std::vector<bool> seen(vocab_size_, false);
        for (const Token token : out_.d2t) {
            if (token < 0 || token >= vocab_size_ || seen[token]) {
                throw Error(path_ + ": medusa.d2t names token " + std::to_string(token) +
                            " twice or outside the base's vocabulary of " + std::to_string(vocab_size_) +
                            ": these heads are for another base");
            }
            seen[token] = true;
        }
        out_.output_rows = static_cast<int>(out_.d2t.size());
    }

    void read_input() {
        const std::string input = file_.get_string("medusa.input").value_or("post_norm");
        const uint32_t above = file_.get_u32("medusa.input_layer_offset").value_or(0);
        if (!(input == "post_norm" && above == 0) &&
            !(input == "layer" && above > 0 && above <= static_cast<uint32_t>(max_layers))) {
            throw Error(path_ +
                        ": these heads read another hidden state than the one after the last norm or after a layer " +
                        "below the last: not supported");
        }
        out_.layers_above_input = static_cast<int>(above);
        out_.embedding_scale = positive("medusa.embedding_scale", 1.0f);
    }

    float positive(const char* key, std::optional<float> otherwise) const {
        const float value = file_.get_f32(key).value_or(otherwise.value_or(0.0f));
        if (std::isfinite(value) && value > 0.0f) return value;
        throw Error(path_ + ": " + key + " is " + std::to_string(value) +
                    ", not a positive number: convert the heads again");
    }

    void read_prefix() {
        PrefixParams& prefix = out_.prefix;
        prefix.head_count = count("medusa.prefix.head_count", 1, max_attention_heads);
        prefix.head_count_kv = count("medusa.prefix.head_count_kv", 1, prefix.head_count);
        if (prefix.head_count % prefix.head_count_kv != 0) {
            throw Error(path_ + ": medusa.prefix.head_count_kv does not divide medusa.prefix.head_count: convert the " +
                        "heads again");
        }
        prefix.rope_freq_base = positive("medusa.prefix.rope_freq_base", std::nullopt);
        prefix.norm_eps = positive("medusa.prefix.norm_eps", std::nullopt);
        prefix.from_answer = file_.get_bool("medusa.prefix.from_answer").value_or(false);
    }

    void read_streams() {
        StreamParams& streams = out_.streams;
        const auto bad = [&](const std::string& what) { return Error(path_ + ": " + what + ": train them again"); };
        const std::string mode = file_.get_string("medusa.streams.mode").value_or("");
        if (mode != "lossless" && mode != "shared") throw bad("medusa.streams.mode is '" + mode + "'");
        streams.shared = mode == "shared";
        streams.layers = count("medusa.streams.layers", 1, max_layers);
        streams.first_layer = count("medusa.streams.first_layer", 1, max_layers);
        streams.rank = count("medusa.streams.rank", 0, max_rank);
        if (streams.rank > 0) streams.alpha = positive("medusa.streams.alpha", std::nullopt);
        streams.root = file_.get_bool("medusa.streams.root").value_or(false);
        streams.root_rank = count("medusa.streams.root_rank", 0, max_rank);
        if (streams.layers != out_.layers_above_input) {
            throw bad("medusa.input_layer_offset is not medusa.streams.layers");
        }
        if (out_.block_count > 0 || out_.lm_head == LmHead::own) {
            throw bad("streams have no blocks and no output matrix of their own");
        }
    }

    void read_accuracy() {
        const auto accuracy = file_.get_f32_array("medusa.accuracy");
        const size_t ranks = file_.get_u32("medusa.accuracy_ranks").value_or(0);
        if (accuracy.empty()) return;
        if (accuracy.size() != ranks * out_.head_count) {
            throw Error(path_ + ": medusa.accuracy is not head_count x ranks long");
        }
        for (int head = 0; head < out_.head_count; ++head) {
            out_.accuracy.emplace_back(accuracy.begin() + head * ranks, accuracy.begin() + (head + 1) * ranks);
        }
    }

    void read_tree() {
        const auto flat = file_.get_i32_array("medusa.tree");
        for (size_t i = 0; i < flat.size();) {
            const int32_t length = flat[i++];
            if (length < 1 || static_cast<size_t>(length) > flat.size() - i) {
                throw Error(path_ + ": medusa.tree is damaged: convert the heads again");
            }
            out_.tree.emplace_back(flat.begin() + i, flat.begin() + i + length);
            i += length;
        }
        try {
            Tree checked(out_.tree);
        } catch (const Error& error) {
            throw Error(path_ + ": medusa.tree is damaged (" + error.what() + "): convert the heads again");
        }
    }

    std::set<std::string> known_tensors() const {
        std::set<std::string> names{base_header_tensor, "medusa.d2t", "medusa.output.weight"};
        const bool has_cell = out_.kind == HeadsKind::recurrent;
        for (const char* matrix : cell_matrices) {
            if (has_cell) names.insert(cell_matrix(matrix) + ".weight");
        }
        for (int head = 0; head < out_.head_count && !has_cell; ++head) {
            const auto add = [&](const std::string& matrix) {
                names.insert(head_tensor(head, matrix + ".weight"));
                names.insert(head_tensor(head, matrix + ".bias"));
            };
            for (int block = 0; block < out_.block_count; ++block) add("block." + std::to_string(block));
            if (out_.reads_path()) add("block.0.residual");
            if (out_.lm_head != LmHead::base) add("output");
        }
        if (out_.has_prefix) {
            for (const char* part : prefix_tensors) names.insert(prefix_tensor(part));
        }
        if (out_.kind == HeadsKind::streams) add_stream_tensors(names);
        return names;
    }

    void add_stream_tensors(std::set<std::string>& names) const {
        names.insert(stream_embedding);
        if (out_.streams.root && out_.streams.root_rank > 0) {
            names.insert({stream_root_a, stream_root_b});
        } else if (out_.streams.root) {
            names.insert(stream_root_scale);
        }
        for (int layer = 0; layer < (out_.streams.rank > 0 ? out_.streams.layers : 0); ++layer) {
            for (const char* matrix : stream_matrices) {
                for (const char* part : {"lora_a", "lora_b"}) names.insert(stream_adapter(layer, matrix, part));
            }
        }
    }

    // A tensor that nothing reads would mean heads that compute something other than their source does.
    void check_tensor_names() const {
        const auto known = known_tensors();
        for (const TensorInfo& info : file_.tensors()) {
            if (!info.name.starts_with("medusa.") || known.contains(info.name)) continue;
            throw Error(path_ + ": tensor " + info.name + " is unknown for " + std::to_string(out_.head_count) + " " +
                        heads_kind_name(out_.kind) + " heads of " + std::to_string(out_.block_count) +
                        " blocks: convert the heads again");
        }
    }

    const GgufFile& file_;
    const std::string& path_;
    int vocab_size_;
    HeadsMetadata out_;
};

}  // namespace

const char* heads_kind_name(HeadsKind kind) {
    constexpr const char* names[] = {"medusa", "hydra", "hydra++", "streams", "recurrent"};
    return names[static_cast<size_t>(kind)];
}

std::string head_tensor(int head, const std::string& rest) {
    return "medusa." + std::to_string(head) + "." + rest;
}

std::string cell_matrix(const std::string& matrix) {
    return "medusa.cell." + matrix;
}

std::string prefix_tensor(const std::string& part) {
    return "medusa.prefix." + part + ".weight";
}

std::string stream_adapter(int layer, const std::string& matrix, const std::string& part) {
    return "medusa.stream." + std::to_string(layer) + "." + matrix + "." + part;
}

HeadsMetadata read_heads_metadata(const GgufFile& file, int vocab_size) {
    return Reader(file, vocab_size).read();
}

}  // namespace medusa
