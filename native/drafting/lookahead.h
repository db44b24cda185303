// Lookahead decoding (Fu et al. 2024, arXiv:2402.02057): drafts n-grams that come up in a Jacobi iteration of the model
// itself.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "decoding/drafter.h"

namespace medusa {

// Paths of tokens below a root as one tree; each shared beginning appears once.
class TokenTrie {
  public:
    static constexpr int root = 0;

    void clear(Token root_token);
    // The child of `parent` that carries `token`, created if there is none. hidden: it need not be accepted; a node
    // stays hidden until it is requested as not hidden.
    int child(int parent, Token token, float q, bool hidden);
    int size() const { return static_cast<int>(nodes_.size()); }
    // Stores the tree in `tree`, which `out` refers to. Afterwards place() tells where a node has ended up.
    void build(Tree& tree, Draft& out);
    int place(int node) const { return places_[node]; }

  private:
    struct Node {
        Token token;
        float q;
        int parent, depth;
        bool hidden;
    };
    std::vector<Node> nodes_;
    std::vector<int> places_;
};

// Names as in the paper: W columns of the window, n-grams of N tokens, at most G of them verified in a step.
struct LookaheadParams {
    int window = 4;
    int ngram = 3;
    int guesses = 4;
};

// The newest n-grams by their first token.
class NgramPool {
  public:
    NgramPool(int ngram, int most) : ngram_(ngram), most_(most) {}

    // ngram: N tokens. It becomes the newest for its first token; the oldest makes room.
    void add(std::span<const Token> ngram);
    // What followed `token`, N - 1 tokens each, the newest last.
    std::span<const std::vector<Token>> after(Token token) const;
    void clear() { by_first_.clear(); }

  private:
    int ngram_, most_;
    std::unordered_map<Token, std::vector<std::vector<Token>>> by_first_;
};

// The trajectory of the newest N - 1 Jacobi iterations. Row 0 is a line of guesses from the root on; the token of row r
// in column c stands at position c + r; above it are the rows of its own column, then row 0 up to column c: a path of a
// tree. A new row comes from the model's answers at the ends of the columns.
class JacobiWindow {
  public:
    explicit JacobiWindow(const LookaheadParams& params) : params_(params) {}

    // Guesses from `text`, in a fixed sequence; the next steps fill the rows one by one.
    void start(std::span<const Token> text);
    bool is_full() const { return static_cast<int>(rows_.size()) == params_.ngram - 1; }
    // Hangs the window below the root, as hidden nodes.
    void draw(TokenTrie& trie);
    // Nodes of the trie that end the columns, the root's own column first.
    const std::vector<int>& ends() const { return ends_; }
    // answers: the model's likeliest token after each of ends(). `found` gets the n-gram of each column of a full
    // window ([columns][N], first the token of row 0). The window moves on by one position.
    void move(Token root, std::span<const Token> answers, std::vector<std::vector<Token>>& found);
    // The most nodes (without the root) and leaves that a window has.
    static TreeBounds bounds(const LookaheadParams& params);

  private:
    LookaheadParams params_;
    std::vector<std::vector<Token>> rows_;  // row 0 from column 1 on (column 0: the root), the others from column 0 on
    std::vector<int> ends_;
};

// One tree: the n-grams that begin with the root, to be verified, and the window, hidden, whose n-grams feed the pool.
// The prompt's n-grams are in the pool from the start.
class LookaheadDrafter final : public Drafter {
  public:
    explicit LookaheadDrafter(const LookaheadParams& params)
        : params_(params), pool_(params.ngram, params.guesses), window_(params) {}

    static TreeBounds bounds(const LookaheadParams& params);

    DrafterNeeds needs() const override { return {.rows = true}; }
    void begin(std::span<const Token> prompt) override;
    void draft(const DraftInput& input, Draft& out) override;
    void verified(const Verified& step) override;

  private:
    LookaheadParams params_;
    NgramPool pool_;
    JacobiWindow window_;
    TokenTrie trie_;
    Tree tree_;
    bool drawn_ = false;  // the newest draft holds the window
    std::vector<std::vector<Token>> found_;
};

}  // namespace medusa
