"""How texts that a model asks of itself may begin, and tasks to wrap around passages.

Left alone, a model asks much the same things over and over; a few words to start with lead it to
translations, summaries, code, sums and the rest of what users want.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opening:
    """First words of a user's turn; the model writes the rest."""

    words: str
    weight: float = 1.0
    long: bool = False  # what follows is a text, not a sentence


@dataclass(frozen=True, slots=True)
class Task:
    """A question about given text: `{passage}`, `{sentence}` and `{question}` are filled in."""

    form: str
    weight: float = 1.0


OPENINGS = (
    # translation
    Opening("Translate German to English:", 4),
    Opening("Translate French to English:", 2),
    Opening("Translate Spanish to English:", 2),
    Opening("Translate Italian to English:"),
    Opening("Translate Chinese to English:"),
    Opening("Translate English to German:", 2),
    Opening("Translate English to French:"),
    Opening("Translate English to Spanish:"),
    Opening("Translate the following sentence into English:"),
    Opening("How do you say in German:"),
    Opening("What does this French sentence mean:"),
    # questions
    Opening("Who", 2),
    Opening("Who was the first"),
    Opening("Who wrote"),
    Opening("When did", 2),
    Opening("When was the"),
    Opening("Where is", 2),
    Opening("Where did the"),
    Opening("What is the", 3),
    Opening("What was the name of"),
    Opening("What are the main causes of"),
    Opening("What is the difference between", 2),
    Opening("What happens when"),
    Opening("Which country", 1.5),
    Opening("Which of the following"),
    Opening("How many", 2),
    Opening("How does", 2),
    Opening("How can I"),
    Opening("How do I"),
    Opening("Why do", 1.5),
    Opening("Is it true that"),
    Opening("Can you explain"),
    # sums and reasoning
    Opening("Solve:", 2),
    Opening("Solve the equation"),
    Opening("Calculate"),
    Opening("A train leaves"),
    Opening("A store sells", 1.5),
    Opening("If a rectangle has"),
    Opening("John has", 2),
    Opening("Maria buys", 1.5),
    Opening("There are 24"),
    Opening("What is the probability that"),
    Opening("Given that x ="),
    Opening("Three friends"),
    Opening("Each day,"),
    # code
    Opening("Write a Python function", 3),
    Opening("Write a C++ program"),
    Opening("Write a JavaScript function"),
    Opening("Write an SQL query"),
    Opening("Write a bash script"),
    Opening("Implement"),
    Opening("What is wrong with this code?\n\n```python\n"),
    Opening("Explain what this code does:\n\n```"),
    # writing
    Opening("Write a story about", 1.5),
    Opening("Write a poem about"),
    Opening("Write an email"),
    Opening("Write a blog post", 1.5),
    Opening("Write a product description for"),
    Opening("Compose"),
    Opening("Draft"),
    Opening("Describe", 2),
    Opening("Imagine you are"),
    Opening("Create an outline for"),
    Opening("Give me five"),
    Opening("List"),
    # roleplay
    Opening("Pretend to be"),
    Opening("You are a", 1.5),
    Opening("Act as a"),
    Opening("Picture yourself as"),
    # rewriting, extraction, judging
    Opening("Rewrite the following sentence:"),
    Opening("Correct the grammar:"),
    Opening("Make this text more formal:"),
    Opening("Extract the names and dates from the following text and return them as JSON:"),
    Opening("Return a JSON object with"),
    Opening("Classify the sentiment of this review:"),
    Opening("Evaluate the following"),
    Opening("Compare"),
    # knowledge
    Opening("Explain", 3),
    Opening("Discuss the", 1.5),
    Opening("In the field of"),
    Opening("Describe the process of"),
    Opening("Provide a detailed overview of"),
    # texts
    Opening("Summarize:", 3, long=True),
    Opening("Summarize the following article:", 2, long=True),
    Opening("Summarize this text in one paragraph:\n\n", long=True),
    Opening("Read the passage and answer the question.\n\nPassage:", 2, long=True),
    Opening("Context:", long=True),
    Opening("Here is a news report:\n\n", long=True),
    Opening("Article:", long=True),
)

PASSAGES = (
    Task("Summarize: {passage}", 4),
    Task("Summarize the following article: {passage}", 2),
    Task("Summarize the following text in three sentences:\n\n{passage}"),
    Task("{passage}\n\nSummarize the text above."),
    Task("{passage}\n\nTL;DR:"),
    Task("List the main points of this text:\n\n{passage}"),
    Task("Give the following text a title and say in one sentence what it is about.\n\n{passage}"),
    Task("Extract the people, places and numbers of this text as a JSON object:\n\n{passage}"),
    Task("Rewrite the following text for a child of ten:\n\n{passage}", 0.5),
)

QUESTIONS = (
    Task("{passage}\n\n{question}", 3),
    Task("{passage}\n\nQuestion: {question}\nAnswer:", 2),
    Task("Answer the question with the help of these passages.\n\n{passage}\n\nQuestion: {question}", 2),
    Task("Context: {passage}\n\nUsing the context, answer: {question}"),
    Task("Question: {question}\n\nSources:\n{passage}"),
)

SENTENCES = (
    Task("Translate English to German: {sentence}", 2),
    Task("Translate English to French: {sentence}", 2),
    Task("Translate English to Spanish: {sentence}"),
    Task("Translate the following sentence into Italian: {sentence}"),
    Task("Rewrite this sentence in other words: {sentence}", 2),
    Task("Make this more formal: {sentence}"),
    Task("Correct the grammar, if needed: {sentence}"),
    Task("Explain what this means: {sentence}", 2),
    Task("Is the following statement true? {sentence}"),
    Task("Write a paragraph that begins with this sentence: {sentence}", 2),
    Task("Repeat this word for word: {sentence}"),
)

ASKED = (  # for a passage when no better question is at hand
    "What is this text mainly about?",
    "What is the most important fact in this text?",
    "Which names are mentioned, and what is said about them?",
    "What can be learned from this text?",
    "What happens first, and what happens last?",
)
