// What the pinned llama.cpp drafts with a model's next-token layers (MTP), or with an EAGLE-3 or DFlash drafter: the
// reference that our drafters are compared with. make_draft_fixtures.py runs it; the tests need only what it wrote.
//
//     draft_reference KIND MODEL DRAFTS TURNS [DRAFTER]
//
// KIND: mtp, eagle3 or dflash. DRAFTER: the drafter's file; without it, the layers of MODEL itself. DRAFTS: tokens in a
// chain. TURNS: a file with a turn in each line, as numbers: how many tokens of the text before to keep (-1: all but
// the root), how many steps to take, and the tokens that follow what is kept, the first root last. A text ends with the
// root that the last step left behind; it can be kept up to there, not beyond.
//
// Prints a line for each step: {"root": id, "draft": [ids], "accepted": n, "gap": x}. The next root is the target's
// choice. gap: the smallest distance between the target's two best logits, of the choices that counted. EAGLE-3 has no
// draft for a text of one token.
//
// With DRAFT_PLAIN_ATTENTION in the environment, attention rounds otherwise: steps that differ then were close to a
// tie.
//
// The driver is common/speculative.cpp of the pinned source, included here as it is; contexts are made and rolled back
// as examples/speculative-simple does it. Two things differ:
//
// - The driver never resets the state that the next batch's first token is paired with, so that after a cut this token
//   is paired with the state of a token that is gone. Here this state is set at every cut: that of the last token kept;
//   at the start of a text, zeros (MTP) or none (EAGLE-3).
// - EAGLE-3's driver pairs the first token of a further batch of a prompt with the state of that batch's last one: it
//   overwrites the state that it has only pointed at. Here this pair is written before.
//
// To build it, with S the pinned source (vendor/llama.cpp of llama-cpp-python's sdist) and B a build of it with
// -DLLAMA_BUILD_COMMON=ON -DBUILD_SHARED_LIBS=ON (the common library is a target of its own, llama-common):
//
//     g++ -std=c++17 -O2 -I$S/common -I$S/include -I$S/ggml/include -I$S/vendor draft_reference.cpp \
//         -o draft_reference -L$B/bin -Wl,-rpath,$B/bin -lllama-common -lllama -lggml -lggml-base

#include "speculative.cpp"

#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

namespace {

constexpr llama_seq_id SEQUENCE = 0;

const std::map<std::string, common_speculative_type> KINDS = {
    {"mtp", COMMON_SPECULATIVE_TYPE_DRAFT_MTP},
    {"eagle3", COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3},
    {"dflash", COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH},
};

struct Turn {
    long kept;
    int steps;
    llama_tokens tokens;
};

std::vector<Turn> read_turns(const char* path) {
    std::ifstream file(path);
    std::vector<Turn> turns;
    for (std::string line; std::getline(file, line);) {
        std::istringstream numbers(line);
        Turn turn;
        GGML_ASSERT(numbers >> turn.kept >> turn.steps);
        for (llama_token token; numbers >> token;) {
            turn.tokens.push_back(token);
        }
        GGML_ASSERT(!turn.tokens.empty());
        turns.push_back(turn);
    }
    return turns;
}

// A target, its drafter, and one text.
class Decoder {
  public:
    Decoder(common_speculative_type kind, const char* model, int drafts, const char* drafter)
        : eagle(kind == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3), dflash(kind == COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH) {
        params.model.path = model;
        params.n_batch = params.n_ubatch = 512;
        params.swa_full = true;  // after a cut, a sliding window needs cells that it had left
        if (std::getenv("DRAFT_PLAIN_ATTENTION")) {
            params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        }
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1;
        params.speculative.types = {kind};
        params.speculative.draft.n_max = drafts;
        params.speculative.draft.backend_sampling = false;
        if (drafter) {
            params.speculative.draft.mparams.path = drafter;
        }
        target_model.reset(llama_model_load_from_file(model, common_model_params_to_llama(params)));
        GGML_ASSERT(target_model);
        target.reset(llama_init_from_model(target_model.get(), common_context_params_to_llama(params)));
        GGML_ASSERT(target);
        auto draft_params = common_base_params_to_speculative(params);
        draft = common_speculative_init_from_params(draft_params, target_model.get(), target.get());
        GGML_ASSERT(draft->context());
        params.speculative.draft.ctx_tgt = target.get();
        params.speculative.draft.ctx_dft = draft->context();
        driver.reset(common_speculative_init(params.speculative, 1));
        GGML_ASSERT(driver);
        width = dflash ? 1 : eagle ? llama_model_n_embd(draft->model()) : llama_model_n_embd_out(target_model.get());
        tokens = llama_vocab_n_tokens(llama_model_get_vocab(target_model.get()));
    }

    void start(const Turn& turn) {
        size_t kept = turn.kept < 0 ? decoded() : turn.kept;
        GGML_ASSERT(kept <= decoded());
        text.resize(kept);
        text.insert(text.end(), turn.tokens.begin(), turn.tokens.end());
        if (!remove_from(kept)) {  // states of recurrent layers go back a few tokens only: all of the text again
            GGML_ASSERT(remove_from(0));
            kept = 0;
        }
        states.resize(kept * width);
        set_pending();
        while (decoded() + 1 < text.size()) {
            const size_t end = std::min(text.size() - 1, decoded() + params.n_batch);
            pair_pending(text[decoded()]);
            decode({text.begin() + decoded(), text.begin() + end});
        }
        const llama_tokens past(text.begin(), text.end() - 1);
        common_speculative_begin(driver.get(), SEQUENCE, past);
    }

    void step() {
        const llama_tokens past(text.begin(), text.end() - 1);
        llama_tokens chain;
        common_speculative_get_draft_params(driver.get(), SEQUENCE) = {
            /* .drafting = */ true,
            /* .n_max    = */ params.speculative.draft.n_max,
            /* .pos0     = */ (llama_pos)past.size(),
            /* .id_last  = */ text.back(),
            /* .prompt   = */ &past,
            /* .result   = */ &chain,
        };
        common_speculative_draft(driver.get());
        GGML_ASSERT(llama_memory_seq_rm(llama_get_memory(draft->context()), SEQUENCE, past.size(), -1));

        llama_tokens batch = {text.back()};
        batch.insert(batch.end(), chain.begin(), chain.end());
        decode(batch);
        size_t accepted = 0;
        float gap = INFINITY;
        llama_token next = best(0, gap);
        while (accepted < chain.size() && chain[accepted] == next) {
            next = best(++accepted, gap);
        }
        common_speculative_accept(driver.get(), SEQUENCE, accepted);
        print(text.back(), chain, accepted, gap);

        text.insert(text.end(), chain.begin(), chain.begin() + accepted);
        text.push_back(next);
        states.resize((text.size() - 1) * width);
        GGML_ASSERT(remove_from(decoded()));
    }

  private:
    size_t decoded() const { return states.size() / width; }

    // An EAGLE-3 drafter's cell of a position is that of the token after it, too: its last one is written once that
    // token is known.
    bool remove_from(size_t position) {
        const size_t drafted = eagle && position > 0 ? position - 1 : position;
        return llama_memory_seq_rm(llama_get_memory(target.get()), SEQUENCE, position, -1) &&
               llama_memory_seq_rm(llama_get_memory(draft->context()), SEQUENCE, drafted, -1);
    }

    // The state that the driver pairs with the next token: that of the last decoded one.
    void set_pending() {
        if (dflash) {
            return;
        }
        std::vector<float> row(width, 0.0f);
        if (!states.empty()) {
            row.assign(states.end() - width, states.end());
        }
        auto& impl = *driver->impls.at(0);
        if (eagle) {
            auto& eagle3 = dynamic_cast<common_speculative_impl_draft_eagle3&>(impl);
            eagle3.pending_g_last.at(SEQUENCE) = row;
            eagle3.pending_pos_last.at(SEQUENCE) = (llama_pos)decoded() - 1;
        } else {
            dynamic_cast<common_speculative_impl_draft_mtp&>(impl).pending_h.at(SEQUENCE) = row;
        }
    }

    // Writes the EAGLE-3 drafter's cell that waited for the next token, before the driver would do so.
    void pair_pending(llama_token next) {
        if (!eagle || states.empty()) {
            return;
        }
        common_batch batch(draft->context());
        const int row = batch.add(next, decoded() - 1, SEQUENCE, false);
        batch.set_embd(row, {states.data() + states.size() - width, 1, (size_t)width});
        GGML_ASSERT(llama_process(draft->context(), LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0);
    }

    // The rows that the driver pairs tokens with, of the batch that it has just seen.
    void keep_states(size_t rows) {
        if (dflash) {  // it pairs none: only their number counts
            return states.resize(states.size() + rows);
        }
        if (eagle) {
            const auto& encoded = dynamic_cast<common_speculative_impl_draft_eagle3&>(*driver->impls.at(0)).verify_g;
            const auto& batch = encoded.at(SEQUENCE);
            GGML_ASSERT(batch.size() == rows * width);
            states.insert(states.end(), batch.begin(), batch.end());
            return;
        }
        for (size_t i = 0; i < rows; i++) {
            const float* row = llama_get_embeddings_nextn_ith(target.get(), i);
            states.insert(states.end(), row, row + width);
        }
    }

    void decode(const llama_tokens& ids) {
        common_batch batch(target.get());
        for (const llama_token id : ids) {
            batch.add(id, decoded() + batch.size(), SEQUENCE, true);
        }
        GGML_ASSERT(llama_process(target.get(), LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0);
        GGML_ASSERT(common_speculative_process(driver.get(), batch));
        keep_states(ids.size());
    }

    // The target's choice after a row of the batch. gap: becomes the distance to the second best, if it is smaller.
    llama_token best(int row, float& gap) {
        const float* logits = llama_get_logits_ith(target.get(), row);
        const auto first = std::max_element(logits, logits + tokens) - logits;
        float second = -INFINITY;
        for (int i = 0; i < tokens; i++) {
            second = i == first ? second : std::max(second, logits[i]);
        }
        gap = std::min(gap, logits[first] - second);
        return first;
    }

    static void print(llama_token root, const llama_tokens& chain, size_t accepted, float gap) {
        std::cout << "{\"root\": " << root << ", \"draft\": [";
        for (size_t i = 0; i < chain.size(); i++) {
            std::cout << (i ? ", " : "") << chain[i];
        }
        std::cout << "], \"accepted\": " << accepted << ", \"gap\": " << gap << "}\n";
    }

    const bool eagle, dflash;
    common_params params;
    llama_model_ptr target_model;
    llama_context_ptr target;
    common_speculative_init_result_ptr draft;
    common_speculative_ptr driver;
    int width = 0;
    int tokens = 0;
    llama_tokens text;          // the last of it is the root: neither target nor drafter has decoded it
    std::vector<float> states;  // [decoded tokens, width]
};

}  // namespace

int main(int argc, char** argv) {
    const auto kind = argc < 5 ? KINDS.end() : KINDS.find(argv[1]);
    if (kind == KINDS.end()) {
        std::cerr << "usage: draft_reference mtp|eagle3|dflash MODEL DRAFTS TURNS [DRAFTER]\n";
        return 2;
    }
    llama_log_set(
        [](ggml_log_level level, const char* message, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) {
                std::cerr << message;
            }
        },
        nullptr);
    llama_backend_init();
    Decoder decoder(kind->second, argv[2], std::atoi(argv[3]), argc > 5 ? argv[5] : nullptr);
    for (const Turn& turn : read_turns(argv[4])) {
        decoder.start(turn);
        for (int step = 0; step < turn.steps; step++) {
            decoder.step();
        }
    }
    return 0;
}
