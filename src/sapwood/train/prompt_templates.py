"""Openings of user turns that a model writes itself, and tasks to wrap around passages.

Without an opening, a model asks much the same things over and over; a few words to start with lead
it to translations, summaries, code, sums and the rest of what users want.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptOpening:
    """The start of a user's turn; the model writes the rest."""

    words: str
    weight: float = 1.0
    long: bool = False  # a longer text follows, not a sentence


@dataclass(frozen=True, slots=True)
class PassageTask:
    """A question about given text: `{passage}`, `{sentence}` and `{question}` are filled in."""

    form: str
    weight: float = 1.0


OPENINGS = (
    # translation
    PromptOpening("Translate German to English:", 4),
    PromptOpening("Translate French to English:", 2),
    PromptOpening("Translate Spanish to English:", 2),
    PromptOpening("Translate Italian to English:"),
    PromptOpening("Translate Chinese to English:"),
    PromptOpening("Translate English to German:", 2),
    PromptOpening("Translate English to French:"),
    PromptOpening("Translate English to Spanish:"),
    PromptOpening("Translate the following sentence into English:"),
    PromptOpening("How do you say in German:"),
    PromptOpening("What does this French sentence mean:"),
    # questions
    PromptOpening("Who", 2),
    PromptOpening("Who was the first"),
    PromptOpening("Who wrote"),
    PromptOpening("When did", 2),
    PromptOpening("When was the"),
    PromptOpening("Where is", 2),
    PromptOpening("Where did the"),
    PromptOpening("What is the", 3),
    PromptOpening("What was the name of"),
    PromptOpening("What are the main causes of"),
    PromptOpening("What is the difference between", 2),
    PromptOpening("What happens when"),
    PromptOpening("Which country", 1.5),
    PromptOpening("Which of the following"),
    PromptOpening("How many", 2),
    PromptOpening("How does", 2),
    PromptOpening("How can I"),
    PromptOpening("How do I"),
    PromptOpening("Why do", 1.5),
    PromptOpening("Is it true that"),
    PromptOpening("Can you explain"),
    # sums and reasoning
    PromptOpening("Solve:", 2),
    PromptOpening("Solve the equation"),
    PromptOpening("Calculate"),
    PromptOpening("A train leaves"),
    PromptOpening("A store sells", 1.5),
    PromptOpening("If a rectangle has"),
    PromptOpening("John has", 2),
    PromptOpening("Maria buys", 1.5),
    PromptOpening("There are 24"),
    PromptOpening("What is the probability that"),
    PromptOpening("Given that x ="),
    PromptOpening("Three friends"),
    PromptOpening("Each day,"),
    # code
    PromptOpening("Write a Python function", 3),
    PromptOpening("Write a C++ program"),
    PromptOpening("Write a JavaScript function"),
    PromptOpening("Write an SQL query"),
    PromptOpening("Write a bash script"),
    PromptOpening("Implement"),
    PromptOpening("What is wrong with this code?\n\n```python\n"),
    PromptOpening("Explain what this code does:\n\n```"),
    # writing
    PromptOpening("Write a story about", 1.5),
    PromptOpening("Write a poem about"),
    PromptOpening("Write an email"),
    PromptOpening("Write a blog post", 1.5),
    PromptOpening("Write a product description for"),
    PromptOpening("Compose"),
    PromptOpening("Draft"),
    PromptOpening("Describe", 2),
    PromptOpening("Imagine you are"),
    PromptOpening("Create an outline for"),
    PromptOpening("Give me five"),
    PromptOpening("List"),
    # roleplay
    PromptOpening("Pretend to be"),
    PromptOpening("You are a", 1.5),
    PromptOpening("Act as a"),
    PromptOpening("Picture yourself as"),
    # rewriting, extraction, judging
    PromptOpening("Rewrite the following sentence:"),
    PromptOpening("Correct the grammar:"),
    PromptOpening("Make this text more formal:"),
    PromptOpening("Extract the names and dates from the following text and return them as JSON:"),
    PromptOpening("Return a JSON object with"),
    PromptOpening("Classify the sentiment of this review:"),
    PromptOpening("Evaluate the following"),
    PromptOpening("Compare"),
    # knowledge
    PromptOpening("Explain", 3),
    PromptOpening("Discuss the", 1.5),
    PromptOpening("In the field of"),
    PromptOpening("Describe the process of"),
    PromptOpening("Provide a detailed overview of"),
    # texts
    PromptOpening("Summarize:", 3, long=True),
    PromptOpening("Summarize the following article:", 2, long=True),
    PromptOpening("Summarize this text in one paragraph:\n\n", long=True),
    PromptOpening("Read the passage and answer the question.\n\nPassage:", 2, long=True),
    PromptOpening("Context:", long=True),
    PromptOpening("Here is a news report:\n\n", long=True),
    PromptOpening("Article:", long=True),
)

PASSAGES = (
    PassageTask("Summarize: {passage}", 4),
    PassageTask("Summarize the following article: {passage}", 2),
    PassageTask("Summarize the following text in three sentences:\n\n{passage}"),
    PassageTask("{passage}\n\nSummarize the text above."),
    PassageTask("{passage}\n\nTL;DR:"),
    PassageTask("List the main points of this text:\n\n{passage}"),
    PassageTask(
        "Give the following text a title and say in one sentence what it is about.\n\n{passage}"
    ),
    PassageTask(
        "Extract the people, places and numbers of this text as a JSON object:\n\n{passage}"
    ),
    PassageTask("Rewrite the following text for a child of ten:\n\n{passage}", 0.5),
)

QUESTIONS = (
    PassageTask("{passage}\n\n{question}", 3),
    PassageTask("{passage}\n\nQuestion: {question}\nAnswer:", 2),
    PassageTask(
        "Answer the question with the help of these passages.\n\n{passage}\n\nQuestion: {question}",
        2,
    ),
    PassageTask("Context: {passage}\n\nUsing the context, answer: {question}"),
    PassageTask("Question: {question}\n\nSources:\n{passage}"),
)

SENTENCES = (
    PassageTask("Translate English to German: {sentence}", 2),
    PassageTask("Translate English to French: {sentence}", 2),
    PassageTask("Translate English to Spanish: {sentence}"),
    PassageTask("Translate the following sentence into Italian: {sentence}"),
    PassageTask("Rewrite this sentence in other words: {sentence}", 2),
    PassageTask("Make this more formal: {sentence}"),
    PassageTask("Correct the grammar, if needed: {sentence}"),
    PassageTask("Explain what this means: {sentence}", 2),
    PassageTask("Is the following statement true? {sentence}"),
    PassageTask("Write a paragraph that begins with this sentence: {sentence}", 2),
    PassageTask("Repeat this word for word: {sentence}"),
)

ASKED = (  # for a passage when no better question is at hand
    "What is this text mainly about?",
    "What is the most important fact in this text?",
    "Which names are mentioned, and what is said about them?",
    "What can be learned from this text?",
    "What happens first, and what happens last?",
)
