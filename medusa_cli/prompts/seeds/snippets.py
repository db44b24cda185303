"""Programming tasks, and pieces of code to explain or to mend."""

from __future__ import annotations

TASKS = [
    text.strip()
    for text in """
reverses the words of a sentence; counts the vowels in a string; checks whether a string is a palindrome; removes
duplicates from a list but keeps the order; returns the second largest number of a list; merges two sorted lists;
rotates a list by k places; finds the most frequent word in a text; checks whether two words are anagrams; converts a
number to Roman numerals; converts Roman numerals to a number; computes the factorial of n; lists all prime numbers
below n; computes the greatest common divisor of two numbers; checks whether a year is a leap year; counts how often
each character occurs; flattens a nested list; transposes a matrix; multiplies two matrices; searches a sorted array
with binary search; sorts numbers with quicksort; sorts numbers with insertion sort; implements a stack; implements a
queue with two stacks; reverses a linked list; detects a cycle in a linked list; inserts a value into a binary search
tree; prints a tree level by level; computes the depth of a tree; finds the shortest path in a grid; counts islands in
a grid of zeros and ones; checks whether brackets are balanced; evaluates an expression in postfix notation; parses a
CSV line with quotes; validates a password; generates a random password; encrypts text with a Caesar cipher; encodes
text with run-length encoding; converts Celsius to Fahrenheit; formats seconds as hours, minutes and seconds; computes
the number of days between two dates; prints a multiplication table; plays rock, paper, scissors; draws a triangle of
stars; simulates a dice game; keeps a to-do list; counts down to New Year; reads a file and prints its longest line;
renames files by date; downloads a web page and counts its links; groups a list of words by first letter; finds all
pairs that add up to a target; finds the longest run of equal numbers; computes a moving average; normalises a list of
numbers to the range 0 to 1; computes the median; computes the standard deviation; shuffles a deck of cards; deals
poker hands; solves a maze; solves the Tower of Hanoi; prints Pascal's triangle; checks a sudoku row; converts a
decimal number to hexadecimal; counts the ones in the binary form of a number; swaps two variables without a third
one; implements a simple cache; limits how often a function is called; retries a failing call three times; splits a
list into chunks; capitalises each word; counts words, lines and characters; replaces tabs with spaces; removes
punctuation; extracts all numbers from a string; finds the missing number from 1 to n; sums the digits of a number;
checks whether a number is perfect; computes compound interest; converts currencies; rolls dice with any number of
sides; prints a calendar month; validates an ISBN; computes a checksum; compares two version numbers; merges
overlapping intervals; schedules meetings without overlap; finds the longest common prefix of some words; computes the
edit distance of two words; generates all permutations of a string; generates all subsets of a set; solves the
knapsack problem; makes change with the fewest coins; simulates a bank account; models a parking garage; tracks an
inventory; prints a histogram; draws a spiral of numbers; computes a running total; filters a list of students by
grade
""".replace("\n", " ").split(";")
]

SNIPPETS = [
    """def mystery(values):
    best = values[0]
    for value in values:
        if value > best:
            best = value
    return best""",
    """const counts = {};
for (const letter of text.toLowerCase()) {
  counts[letter] = (counts[letter] || 0) + 1;
}
console.log(counts);""",
    """def walk(node):
    if node is None:
        return []
    return walk(node.left) + [node.value] + walk(node.right)""",
    """for (int i = 0; i < n - 1; i++) {
    for (int j = 0; j < n - 1 - i; j++) {
        if (a[j] > a[j + 1]) {
            int t = a[j]; a[j] = a[j + 1]; a[j + 1] = t;
        }
    }
}""",
    """def is_prime(n):
    if n < 2:
        return False
    divisor = 2
    while divisor * divisor <= n:
        if n % divisor == 0:
            return False
        divisor += 1
    return True""",
    """SELECT city, COUNT(*) AS visitors
FROM visits
WHERE year = 2023
GROUP BY city
HAVING COUNT(*) > 100
ORDER BY visitors DESC;""",
    """squares = {n: n * n for n in range(10) if n % 2}
print(max(squares, key=squares.get))""",
    """function debounce(callback, delay) {
  let timer = null;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => callback(...args), delay);
  };
}""",
    """fn sum_even(values: &[i32]) -> i32 {
    values.iter().filter(|v| *v % 2 == 0).sum()
}""",
    """def power(base, exponent):
    result = 1
    while exponent > 0:
        if exponent % 2 == 1:
            result *= base
        base *= base
        exponent //= 2
    return result""",
    """import csv

with open("sales.csv", newline="") as file:
    total = sum(float(row["amount"]) for row in csv.DictReader(file))
print(f"{total:.2f}")""",
    """public int find(int[] items, int wanted) {
    int low = 0, high = items.length - 1;
    while (low <= high) {
        int middle = low + (high - low) / 2;
        if (items[middle] == wanted) return middle;
        if (items[middle] < wanted) low = middle + 1;
        else high = middle - 1;
    }
    return -1;
}""",
    """class Counter:
    def __init__(self):
        self.value = 0

    def __call__(self):
        self.value += 1
        return self.value""",
    """for file in *.log; do
  lines=$(wc -l < "$file")
  if [ "$lines" -gt 1000 ]; then
    gzip "$file"
  fi
done""",
    """func worker(jobs <-chan int, results chan<- int) {
    for job := range jobs {
        results <- job * 2
    }
}""",
]

BUGGY = [
    """def average(values):
    total = 0
    for value in values:
        total = value
    return total / len(values)""",
    """def add_item(item, items=[]):
    items.append(item)
    return items""",
    """function isEven(n) {
  if (n % 2 = 0) {
    return true;
  }
  return false;
}""",
    """def count_words(text):
    words = text.split(" ")
    counts = {}
    for word in words:
        counts[word] += 1
    return counts""",
    """int sum(int *a, int n) {
    int s;
    for (int i = 0; i <= n; i++)
        s += a[i];
    return s;
}""",
    """def last_three(items):
    return items[-3:-1]""",
    """let total = 0;
["1", "2", "3"].forEach(function (x) {
  total = total + x;
});
console.log(total);""",
    """def find_max(values):
    best = 0
    for value in values:
        if value > best:
            best = value
    return best  # returns 0 for [-3, -1]""",
    """while i < 10:
    print(i)
i += 1""",
    """def factorial(n):
    return n * factorial(n - 1)""",
    """numbers = [1, 2, 3, 4, 5, 6]
for number in numbers:
    if number % 2 == 0:
        numbers.remove(number + 1)
print(numbers)""",
    """SELECT name, MAX(price) FROM products WHERE MAX(price) > 100;""",
    """String a = scanner.nextLine();
if (a == "yes") {
    System.out.println("Confirmed");
}""",
    """def celsius(fahrenheit):
    return fahrenheit - 32 * 5 / 9""",
]
