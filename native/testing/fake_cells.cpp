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
