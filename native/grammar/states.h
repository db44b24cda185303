// How far texts have come in a grammar: states that many texts share, made as they are reached.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace medusa {

// A grammar asks for more work or memory than a token may cost. Ends the answer.
class GrammarLimit : public Error {
  public:
    GrammarLimit()
        : Error("the grammar is too ambiguous to follow this text: simplify it, or shorten its repetitions") {}
};

// A state is a number: the same one for all texts after which the same may follow in the same way. It holds the
// positions at which the next byte may stand, each with its continuation. A continuation is a number, too: of the set
// of positions (with continuations of their own) at which the text goes on once a rule has been read. All that wait for
// the same rule in a state share one continuation, and what comes last in a rule goes on as that rule does: so
// recursion to the right and ambiguity leave both small.
//
// Not thread-safe; nothing that was made ever changes.
class GrammarStates {
  public:
    static constexpr int dead = -1;

    // Of all states and continuations.
    static constexpr size_t most_bytes = size_t{48} << 20;

    explicit GrammarStates(std::shared_ptr<const Grammar> grammar);

    int start() const { return start_; }
    // The state after a further byte; `dead`: no text goes on like this. Throws GrammarLimit.
    int after(int state, uint8_t byte) {
        const int known = next_[static_cast<size_t>(state) * classes_ + static_cast<size_t>(grammar_->class_of(byte))];
        return known != unknown ? known : advance(state, grammar_->class_of(byte));
    }
    int after(int state, const std::string& bytes);
    // Whether the text may end here; whether it must.
    bool accepts(int state) const { return states_[static_cast<size_t>(state)].accepts; }
    bool is_complete(int state) const { return accepts(state) && states_[static_cast<size_t>(state)].items.empty(); }
    // The only byte that may follow where the text cannot end; -1: there are several.
    int forced(int state);
    // What the next calls may do together, in visited positions, before they throw GrammarLimit.
    void allow(size_t visits) { visits_left_ = visits; }

    size_t count() const { return states_.size(); }
    size_t bytes() const { return bytes_; }

  private:
    static constexpr int unknown = -2;
    struct Item {
        int32_t at, next;  // a position in the grammar; its continuation
        auto operator<=>(const Item&) const = default;
    };
    using Items = std::vector<Item>;
    struct State {
        Items items;
        bool accepts;
    };
    struct Hash {
        size_t operator()(const Items& items) const;
    };

    int advance(int state, int byte_class);
    int close(const Items& kernel);
    void visit(Item item);
    void call(const Item& item, int32_t rule);
    void visit_pending();
    int32_t continuation(Items items);
    int intern(Items items, bool accepts);
    void take(size_t bytes);

    std::shared_ptr<const Grammar> grammar_;
    size_t classes_;
    std::vector<State> states_;
    std::vector<int> next_;  // [state][class]
    std::vector<Items> continuations_;
    std::unordered_map<Items, int32_t, Hash> continuation_ids_;
    std::unordered_map<Items, int, Hash> state_ids_;
    int start_ = 0;
    size_t bytes_ = 0, visits_left_;

    // While a state is being made.
    Items pending_, found_;
    std::unordered_map<uint64_t, char> seen_;
    std::map<int32_t, Items> calls_;  // by the order of the rule: where to go on after it
    bool accepts_ = false;
};

}  // namespace medusa
