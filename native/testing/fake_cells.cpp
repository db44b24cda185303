#include "testing/fake_cells.h"

#include <map>
#include <stdexcept>

namespace medusa::testing {

void FakeCells::add(int position, Token token, std::set<int> sequences) {
    cells_.push_back({position, token, std::move(sequences)});
}

bool FakeCells::remove(int sequence, int from, int to) {
    ++calls_;
    for (Cell& cell : cells_) {
        if (cell.position < from || (to >= 0 && cell.position >= to)) continue;
        if (sequence < 0) {
            cell.sequences.clear();
        } else {
            cell.sequences.erase(sequence);
        }
    }
    std::erase_if(cells_, [](const Cell& cell) { return cell.sequences.empty(); });
    return true;
}

void FakeCells::copy(int source, int target, int from, int to) {
    ++calls_;
    for (Cell& cell : cells_) {
        if (cell.position < from || (to >= 0 && cell.position >= to)) continue;
        if (cell.sequences.contains(source)) cell.sequences.insert(target);
    }
}

void FakeCells::save_all(StateWriter& out) {
    for (const Cell& cell : cells_) {
        if (cell.sequences != std::set<int>{0}) throw std::logic_error("another sequence is saved");
    }
    out.list<Token>(sequence(0));
}

bool FakeCells::set_all(StateReader& in) {
    cells_.clear();
    const std::vector<Token> tokens = in.list<Token>();
    for (size_t i = tokens.size(); i > 0; --i) add(static_cast<int>(i) - 1, tokens[i - 1], {0});
    return true;
}

std::vector<Token> FakeCells::sequence(int id) const {
    std::map<int, Token> by_position;
    for (const Cell& cell : cells_) {
        if (!cell.sequences.contains(id)) continue;
        if (!by_position.emplace(cell.position, cell.token).second) throw std::logic_error("two cells at one position");
    }
    std::vector<Token> tokens;
    for (const auto& [position, token] : by_position) {
        if (position != static_cast<int>(tokens.size())) throw std::logic_error("a hole in a sequence");
        tokens.push_back(token);
    }
    return tokens;
}

}  // namespace medusa::testing
