"""Things to ask about: the vocabulary that seed_prompts crosses with its templates."""

from __future__ import annotations


def _items(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.replace("\n", " ").split(";")) if item]


SCIENCE = _items("""
photosynthesis; plate tectonics; black holes; the water cycle; natural selection; radioactive decay; electromagnetic
induction; the immune system; enzymes; DNA replication; superconductors; the greenhouse effect; tides; the periodic
table; chemical bonding; acids and bases; catalysts; the carbon cycle; lightning; rainbows; earthquakes; volcanoes;
the life cycle of stars; the Big Bang; dark matter; Newton's laws of motion; friction; buoyancy; sound waves; the
Doppler effect; refraction; lasers; semiconductors; nuclear fusion; entropy; heat transfer; osmosis; mitosis; meiosis;
genetic inheritance; stem cells; vaccines; antibiotics and resistance; viruses; bacteria; fungi; the nervous system;
neurons; the heart and circulation; lungs and breathing; digestion; kidneys; hormones; sleep cycles; the human eye;
hearing; memory formation; pollination; food chains; coral reefs; migration of birds; hibernation; camouflage;
symbiosis; invasive species; fossils; dinosaurs; ice ages; ocean currents; El Niño; hurricanes; tornadoes; the ozone
layer; soil formation; glaciers; crystals; polymers; rust and corrosion; electrolysis; batteries; magnets; gravity;
relativity; quantum entanglement; the uncertainty principle; atoms and isotopes; spectroscopy; pendulums; levers and
pulleys; pressure in fluids; aerodynamics; projectile motion; centripetal force; conservation of energy; specific
heat; boiling and evaporation; surface tension; diffusion; gas laws; fermentation; proteins; carbohydrates;
cholesterol; blood types; allergies; the placebo effect; CRISPR; cloning; the microbiome; exoplanets; comets; the
phases of the moon; solar eclipses; Mars; Saturn's rings; space telescopes; rocket propulsion; cosmic rays; auroras;
tsunamis; groundwater
""")

TECH = _items("""
recursion; hash tables; binary search; version control with Git; relational databases; SQL joins; indexes in
databases; REST APIs; HTTP cookies; encryption; public-key cryptography; password managers; two-factor authentication;
firewalls; virtual private networks; cloud computing; containers; load balancing; caching; operating systems; virtual
memory; processes and threads; deadlocks; compilers; interpreters; garbage collection; object-oriented programming;
functional programming; unit testing; continuous integration; code review; debugging; regular expressions; data
structures; linked lists; stacks and queues; graphs; sorting algorithms; dynamic programming; big O notation; machine
learning; neural networks; overfitting; decision trees; clustering; linear regression; recommendation systems; speech
recognition; computer vision; robotics; 3D printing; blockchain; the Internet of Things; GPS; Wi-Fi; Bluetooth; fibre
optics; 5G; search engines; web browsers; CSS layouts; responsive design; accessibility on the web; JavaScript
promises; Python decorators; list comprehensions; type systems; memory leaks; microservices; message queues;
spreadsheets; open-source licences; phishing; ransomware; data backups; solid-state drives; graphics cards; quantum
computers; electric cars; self-driving cars; drones; wind turbines; solar panels; heat pumps; smart thermostats;
e-readers; noise-cancelling headphones; digital cameras; touchscreens; barcodes; image compression; audio codecs; JSON
and XML; Unicode; time zones in software; random number generators; checksums; the command line; shell scripts; cron
jobs; package managers
""")

HISTORY = _items("""
the fall of the Roman Empire; the Silk Road; the Black Death; the Magna Carta; the Renaissance; the printing press;
the Protestant Reformation; the Age of Exploration; the Aztec Empire; the Inca road system; the Mughal Empire; the
Ottoman Empire; the Tang dynasty; the Meiji Restoration; the French Revolution; the American Civil War; the Industrial
Revolution; the abolition of slavery; the Suez Canal; the Scramble for Africa; the Russian Revolution; the First World
War; the Great Depression; the Marshall Plan; the Cold War; the space race; the Berlin Wall; the end of apartheid; the
civil rights movement; women's suffrage; the Partition of India; the Cuban Missile Crisis; the Vikings; the Crusades;
the Mongol Empire; the Hanseatic League; ancient Egypt; the Code of Hammurabi; the Persian Empire; Athenian democracy;
Sparta; Alexander the Great; the Punic Wars; the Maya calendar; the Great Wall of China; feudal Japan; the Ming
treasure voyages; the Kingdom of Mali; Great Zimbabwe; the Congress of Vienna; the unification of Germany; the Boxer
Rebellion; the Irish potato famine; the California gold rush; the Dust Bowl; the New Deal; the Spanish Civil War; the
Long March; the Korean War; decolonisation in Asia; the European Union's founding; the fall of the Soviet Union; the
history of writing; the history of money; the history of tea; the spice trade; the invention of the telegraph; the
first railways; the history of bicycles; medieval guilds; castles and sieges; the Enlightenment; the Haitian
Revolution; Simón Bolívar
""")

HUMANITIES = _items("""
existentialism; stoicism; utilitarianism; Kant's categorical imperative; Aristotle's virtue ethics; Plato's allegory
of the cave; Confucianism; Taoism; Buddhism and suffering; free will; the trolley problem; personal identity;
scepticism; empiricism and rationalism; social contract theory; justice as fairness; human rights; feminism;
postcolonialism; multiculturalism; nationalism; propaganda; censorship; the role of religion in society; secularism;
myths and legends; Greek tragedy; Shakespeare's comedies; the epic of Gilgamesh; Don Quixote; Romantic poetry; haiku;
the novel as a form; magical realism; science fiction as social criticism; satire; fairy tales; oral storytelling;
Impressionism; Cubism; Baroque music; jazz; the blues; opera; Bollywood; film noir; photography as art; Gothic
cathedrals; brutalist architecture; Japanese gardens; calligraphy; ballet; theatre of the absurd; the history of
fashion; graffiti; museums and colonial objects; language extinction; slang; bilingualism; the origins of English;
body language; rites of passage; gift giving across cultures; funeral customs; national holidays; urbanisation;
migration; social class; consumerism; the welfare state; minimum wage; universal basic income; inflation; supply and
demand; opportunity cost; globalisation; free trade; monopolies; behavioural economics; game theory; the prisoner's
dilemma; confirmation bias; cognitive dissonance; Maslow's hierarchy of needs; attachment theory; groupthink; the
bystander effect; nature and nurture; the scientific method; peer review; statistics in the news; the separation of
powers; federalism; proportional representation; juries; constitutional courts; the United Nations; diplomacy; just
war theory; civil disobedience; privacy; freedom of speech
""")

NATURE = _items("""
octopuses; honeybees; wolves; elephants; penguins; sea turtles; bats; hummingbirds; owls; crocodiles; chameleons;
monarch butterflies; ants; spiders; jellyfish; sharks; blue whales; dolphins; salmon; seahorses; kangaroos; koalas;
sloths; tigers; snow leopards; giraffes; hippos; meerkats; beavers; foxes; hedgehogs; squirrels; parrots; crows;
eagles; flamingos; frogs; salamanders; snakes; tardigrades; redwoods; baobabs; bamboo; cacti; orchids; carnivorous
plants; mosses; mushrooms; mangroves; rainforests; deserts; savannas; tundra; wetlands; tide pools; caves; rivers;
mountains
""")

FOOD = _items("""
sourdough bread; tomato soup; vegetable curry; pancakes; risotto; ramen; tacos; dumplings; roast chicken; lentil stew;
apple pie; chocolate cake; banana bread; hummus; falafel; sushi; paella; pizza dough; pesto; omelettes; fried rice;
pad thai; borscht; goulash; shakshuka; kimchi; pickled cucumbers; ice cream; granola; porridge; fish pie; stuffed
peppers; mushroom pasta; potato salad; guacamole; salsa; chilli; lasagne; quiche; scones; oatmeal cookies; cinnamon
rolls; crêpes; smoothies; iced coffee; green tea; lemonade; strawberry jam; vegetable stock; couscous salad; beef
stew; coconut rice; grilled aubergine; baked salmon; cheese fondue; naan; tofu stir-fry; pumpkin soup; rice pudding
""")

HOBBIES = _items("""
gardening; watercolour painting; playing the guitar; chess; knitting; woodworking; birdwatching; running; cycling;
swimming; yoga; hiking; rock climbing; sailing; fishing; photography; pottery; baking; calligraphy; origami; learning
the piano; singing in a choir; stand-up comedy; board games; model trains; astronomy; beekeeping; home brewing;
genealogy; collecting stamps; journaling; blogging; podcasting; video editing; drone flying; skateboarding; surfing;
skiing; table tennis; badminton; tennis; football; basketball; volleyball; martial arts; archery; dancing salsa;
juggling; magic tricks; crossword puzzles; learning a language; volunteering; geocaching; camping; kayaking; horse
riding; meditation; sewing; jewellery making; restoring furniture; writing poetry; film criticism; mushroom foraging;
sketching
""")

HOME = _items("""
unclogging a sink; painting a room; fixing a squeaky door; removing a wine stain; sharpening kitchen knives; repotting
a houseplant; composting; saving energy at home; cleaning an oven; organising a small kitchen; packing for a move;
choosing a mattress; assembling flat-pack furniture; hanging a picture straight; patching a bicycle tyre; washing a
wool jumper; growing tomatoes on a balcony; keeping a cat indoors; training a puppy; setting up a fish tank;
insulating windows; replacing a light switch; descaling a kettle; folding a fitted sheet; ironing a shirt; polishing
shoes; budgeting for a family; planning weekly meals; reducing food waste; decluttering a wardrobe; babyproofing a
flat; hosting a dinner party; planning a children's birthday; writing a will; choosing health insurance; preparing for
a power cut; making a first-aid kit; reading a payslip; renting a first flat; dealing with noisy neighbours; getting
rid of fruit flies
""")

WORK = _items("""
job interviews; remote work; running meetings; giving feedback; asking for a raise; negotiating a contract; writing a
CV; cover letters; time management; procrastination; burnout; onboarding new colleagues; managing a team; delegating;
presentations; networking; customer service; conflict at work; project planning; setting goals; prioritising tasks;
writing reports; freelancing; starting a small business; pricing a product; marketing on a small budget; social media
strategy; search engine optimisation; bookkeeping; cash flow; crowdfunding; market research; brand names; user
surveys; product launches; supply chains; quality control; workplace safety; internships; career changes; mentoring;
leadership; public procurement; data protection at work; diversity in hiring; performance reviews; returning after
parental leave
""")

HEALTH = _items("""
sleeping better; back pain from sitting; healthy breakfasts; drinking enough water; stress before exams; walking more;
strength training for beginners; stretching; eye strain; reading food labels; vitamin D; iron-rich foods; headaches;
hay fever; common colds; sunburn; first aid for burns; blisters; jet lag; caffeine; sugar; salt; fibre in the diet;
vegetarian protein; intermittent fasting; screen time; posture; breathing exercises; mindfulness; grief; loneliness;
anger; building habits; quitting smoking; dental care; hand washing; travel vaccinations; growing pains; healthy
ageing
""")

PLACES = _items("""
Kyoto; Lisbon; Reykjavik; Nairobi; Buenos Aires; Montreal; Hanoi; Marrakesh; Prague; Edinburgh; Istanbul; Seoul; Cape
Town; Mexico City; Lima; Havana; Oslo; Helsinki; Vienna; Budapest; Kraków; Naples; Seville; Porto; Athens; Cairo;
Amman; Tbilisi; Samarkand; Mumbai; Jaipur; Kathmandu; Colombo; Bangkok; Singapore; Bali; Melbourne; Auckland;
Vancouver; New Orleans; Chicago; Santa Fe; San Juan; Bogotá; Quito; La Paz; Santiago; Montevideo; Accra; Dakar;
Zanzibar; Addis Ababa; Muscat; Dublin; Bruges; Amsterdam; Copenhagen; Tallinn; Riga; Ljubljana; Dubrovnik; Sicily;
Corsica; the Azores; Patagonia; the Scottish Highlands; the Dolomites; Lapland; the Atacama Desert; Tasmania;
Hokkaido; the Mekong Delta; Transylvania
""")

NAMES = _items("""
Amara; Ben; Chiara; Dmitri; Elena; Farid; Grace; Hiroshi; Ingrid; Jamal; Katya; Luca; Mei; Nadia; Omar; Priya;
Quentin; Rosa; Samuel; Tomás; Uma; Viktor; Wanjiru; Xavier; Yusuf; Zoe; Alice; Boris; Carmen; Daniel; Esther; Felix;
Hannah; Igor; Julia; Kofi; Lena; Marcus; Nora; Oliver; Paula; Ravi; Sofia; Theo; Vera; Walter; Anika; Bruno; Clara;
Diego; Emily; Frank; Greta; Hassan; Isabel; Jonas; Kim; Leila; Mateo; Noor; Oscar; Petra; Rahul; Simone; Tariq;
Ursula; Violet; Wen
""")

SURNAMES = _items("""
Okafor; Lindqvist; Moreau; Tanaka; Petrov; García; Nguyen; Schmidt; Rossi; Kowalski; Haddad; Mbeki; Fernandes;
O'Brien; Novak; Andersen; Kaplan; Singh; Chen; Dubois; Marino; Hoffmann; Sato; Ibrahim; Castillo; Papadopoulos;
Murphy; Larsen; Banerjee; Costa; Yilmaz; Park; Wagner; Silva; Bianchi; Horvat; Jansen; Mensah; Farouk; Eriksson;
Doyle; Weber; Reyes
""")

JOBS = _items("""
nurse; baker; electrician; librarian; pilot; carpenter; lawyer; teacher; farmer; chef; plumber; architect; journalist;
firefighter; astronomer; veterinarian; bus driver; violin maker; diplomat; detective; tour guide; gardener; paramedic;
software engineer; accountant; pharmacist; lighthouse keeper; blacksmith; museum curator; sailor; fisherman; midwife;
photographer; translator; judge; tailor; barista; postman; geologist; marine biologist; train conductor; set designer;
watchmaker; beekeeper; personal trainer; dentist; city planner; stage actor; referee; hairdresser; zookeeper; mechanic
""")

CHARACTERS = _items("""
a retired pirate; a nervous robot on its first day at work; a medieval knight who hates fighting; a cheerful
innkeeper; a grumpy wizard; an old sea captain; a Victorian inventor; a sarcastic house cat; a wise grandmother; an
alien tourist; a time-worn detective; a ghost who cannot scare anyone; a travelling salesman of dreams; the moon; a
mountain that has seen empires; a chatty taxi driver; a strict piano teacher; a museum guard who talks to paintings;
an explorer lost in the jungle; a space station's computer; a rookie superhero; a court jester; a Roman legionary; a
queen in exile; a bored dragon; a lonely lighthouse; a stubborn mule; a rain cloud; a philosopher who works as a
barber; a talking compass; a sports commentator describing everyday life; a conspiracy-minded parrot; a polite
burglar; a poet from the Tang dynasty; an optimistic snowman in spring; a tired tooth fairy; a 1920s radio host; a
librarian of forbidden books; an elderly chess master; a young botanist on a distant planet; a haunted typewriter; a
competitive baker; a mountain rescue dog
""")

EXPERTS = _items("""
a financial adviser; a travel agent; a nutritionist; a fitness coach; a career counsellor; a language tutor; a history
professor; a doctor who explains things simply; a gardening expert; an interior designer; a security consultant; a
database administrator; a senior Python developer; a copy editor; a screenwriter; a songwriter; a startup founder; a
customer support agent; a hiring manager; a debate coach; a wedding planner; a mechanic; a physics teacher; a maths
tutor; a chef with a tiny kitchen; a park ranger; a data analyst; a public librarian; a speech therapist; a museum
guide; a kindergarten teacher; an event manager; a tax clerk; a sailing instructor; a sleep specialist; a wine critic;
a product manager; a science journalist; an urban planner; a philosophy student; a negotiation trainer; a veterinary
assistant
""")

TONES = _items("""
friendly; formal; humorous; serious; poetic; dramatic; enthusiastic; calm; sarcastic; persuasive; neutral; warm; dry;
optimistic; melancholic; mysterious; playful; respectful; apologetic; confident; simple; nostalgic; urgent; gentle
""")

AUDIENCES = _items("""
a ten-year-old; a complete beginner; my grandmother; a high school student; a busy manager; a group of tourists; an
engineer; someone who hates science; a university freshman; a curious teenager; a panel of experts; a new employee; a
non-native speaker; readers of a local newspaper; a kindergarten class; a sceptical friend; a city council; my boss
""")

GENRES = _items("""
fantasy; science fiction; mystery; romance; horror; historical fiction; adventure; comedy; western; fairy tale;
thriller; fable; ghost story; coming-of-age; detective; dystopian; magical realism; crime; travel; family saga; war;
sports
""")

FORMS = _items("""
a short story; a poem; a limerick; a haiku; a sonnet; a song; a monologue; a dialogue; a diary entry; a letter; a
speech; a blog post; a newspaper article; a book review; a film synopsis; a product description; a press release; a
fable; a scene for a play; a children's story; a legend; a riddle; an advertisement; a toast; an obituary for a
fictional person; a postcard; a weather report; a recipe in verse; an interview; a public notice; an essay; a
prologue; a lullaby
""")

THINGS = _items("""
a broken watch; an old map; a red umbrella; a locked drawer; a letter that arrives thirty years late; a village
without clocks; a train that never stops; a garden on a rooftop; the last bookshop in town; a key that fits no door; a
stray dog; a photograph of a stranger; a violin with a secret; an abandoned amusement park; a lighthouse in a storm;
two brothers who do not speak; a bakery at four in the morning; a chess game by mail; a lost suitcase; a snowed-in
airport; a river that changes direction; a school for shadows; a painting that changes at night; a borrowed coat; an
empty theatre; a night bus; a wedding in the rain; a neighbour who never sleeps; a city under the sea; a rusty
bicycle; a bridge between two worlds; a forgotten birthday; a message in a bottle; a stolen recipe; a very small
dragon; a house with too many doors; the first day of spring; a power cut; an honest thief; a market stall that sells
memories; an apple tree; a long queue; the smell of rain; a mistaken phone call; a desert caravan; a kite festival; a
retired astronaut; a duel that nobody wants to win
""")

EVENTS = _items("""
a delayed delivery; a cancelled flight; a refund for broken headphones; moving a meeting to Thursday; a job
application as an assistant; a sick day; a birthday invitation; a complaint about noise; a thank-you after an
interview; a request for a reference; an apology for a late reply; a reminder about an unpaid invoice; a school trip;
a gym membership to be cancelled; a lost parcel; booking a conference room; welcoming a new team member; declining an
invitation politely; a broken heating system in a rented flat; asking a professor for an extension; a change of
address; a neighbourhood clean-up; a charity run; a wrong charge on a credit card; a hotel booking for four nights; a
password that was reset by mistake; a software outage; a maternity leave announcement; a farewell to a colleague; a
permission to use a photograph; a quote for painting an office; a misplaced order of chairs; sponsorship for a youth
football club; a library book that is overdue; a dentist's appointment; an internship offer; a meeting summary; an
office move; a survey about lunch options
""")

LANGUAGES = _items("""
French; Spanish; German; Italian; Portuguese; Dutch; Swedish; Polish; Turkish; Indonesian; Latin; Esperanto; Norwegian
""")

PROGRAMMING = _items("""
Python; Python; Python; JavaScript; JavaScript; TypeScript; Java; C; C++; C#; Go; Rust; Ruby; PHP; Swift; Kotlin;
Bash; SQL
""")

PRODUCTS = _items("""
a reusable water bottle; a folding bicycle; a desk lamp; a language-learning app; a meal-planning service; a
mechanical keyboard; a hiking backpack; a smart bird feeder; a scented candle; a raincoat for dogs; a portable
projector; a bread machine; a noise-free fan; a wooden puzzle; a travel pillow; a plant-watering robot; a budget
tracker; a board game about volcanoes; a solar phone charger; a subscription box of teas; a standing desk; an electric
toothbrush; a tent for two; a pocket telescope; a kids' science kit; handmade soap; a cargo bike rental; an online
chess school; a compost bin; a second-hand clothes shop; a digital piano; a pair of running shoes; a note-taking app;
a kitchen scale; a wool blanket
""")

OBJECTS = _items("""
apples; books; tickets; pencils; oranges; cupcakes; chairs; bottles of water; notebooks; tiles; boxes; stamps; eggs;
loaves of bread; flowers; bricks; T-shirts; marbles; batteries; cups of coffee; sandwiches; puzzle pieces; seedlings;
candles
""")

OPENERS = _items("""
How do I; How can I; What is the; What are the; Why do; Why is; Why does; Can you explain; Can you help me; Could you
write; Please write; Write a; Write an; Write me; Give me; Tell me; Explain how; Explain why; Describe; Describe how;
Summarize; List; List three; Name five; Compare; Create a; Design; Suggest; I need; I want to; I have a; I am; I'm
trying to; I'm planning; My friend; My teacher; My daughter; My boss; Is it; Are there; Do you; Does; Should I; If I;
If a; When I; When did; Where can; Who was; Who invented; Which; In what; Imagine; Pretend; Act as; You are; Let's;
Suppose; Given; A train; A company; There are; Calculate; Solve; Find; Prove; Convert; Translate; Rewrite; Correct;
Improve; Edit; Extract; Classify; Implement; Debug; Refactor; Write a function; Write a Python; In JavaScript; What
does this code; Tell a; Make a; Generate; Recommend; Plan; Draft; Outline; Discuss; Analyze; Evaluate; What happens;
What would; What if; How many; How much; How long; How far; How does; How did; Hello; Hi, I; Good morning; Thanks;
Help me; Teach me; Show me; What's the difference
""")

KNOWLEDGE = SCIENCE + TECH + HISTORY + HUMANITIES + NATURE
EVERYDAY = FOOD + HOBBIES + HOME + WORK + HEALTH + PLACES
ANYTHING = KNOWLEDGE + EVERYDAY
